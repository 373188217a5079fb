"""Arguments of tools: declared once, as JSON schema for clients and as a check of what comes.

A text about a bad argument never repeats its value, which may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from boxd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

Kind = Literal["string", "integer", "boolean", "strings", "environment"]

MAX_ITEMS = 256
"""Entries of a list or an object."""
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]*"


class BadArguments(BadRequest):
    """Arguments that the schema of the tool does not allow."""


@dataclass(frozen=True, slots=True)
class Param:
    """One argument. `minimum` and `maximum` bound an integer, or the length of a string.

    `choices` are all values of a string; `default` None of an optional one: not given.
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    default: object = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """As JSON schema."""
        found: dict[str, Any]
        if self.kind == "strings":
            found = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ITEMS}
        elif self.kind == "environment":
            found = {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "propertyNames": {"pattern": f"^{_VARIABLE}$"},
                "maxProperties": MAX_ITEMS,
            }
        else:
            found = {"type": self.kind} | self._bounds()
        if self.choices:
            found["enum"] = list(self.choices)
        if self.default is not None:
            found["default"] = self.default
        return found | {"description": self.about}

    def _bounds(self) -> dict[str, Any]:
        low, high = ("minLength", "maxLength") if self.kind == "string" else ("minimum", "maximum")
        bounds = {low: self.minimum, high: self.maximum}
        return {name: value for name, value in bounds.items() if value is not None}

    def checked(self, value: object) -> object:
        """The value. Raises BadArguments, which names the argument."""
        match self.kind:
            case "integer":
                return self._integer(value)
            case "boolean":
                return self._boolean(value)
            case "strings":
                return self._strings(value)
            case "environment":
                return self._environment(value)
            case "string":
                return self._string(value)

    def _integer(self, value: object) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadArguments(f"{self.name} is not a whole number")
        if self.minimum is not None and value < self.minimum:
            raise BadArguments(f"{self.name} is less than {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise BadArguments(f"{self.name} is more than {self.maximum}")
        return value

    def _boolean(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise BadArguments(f"{self.name} is not true or false")
        return value

    def _strings(self, value: object) -> list[str]:
        if not isinstance(value, list):
            raise BadArguments(f"{self.name} is not a list of strings")
        self._few(value)
        return [self._text(one) for one in value]

    def _string(self, value: object) -> str:
        found = self._text(value)
        if self.choices and found not in self.choices:
            raise BadArguments(f"{self.name} is one of: {', '.join(self.choices)}")
        if self.minimum is not None and len(found) < self.minimum:
            least = "is empty" if self.minimum == 1 else f"is shorter than {self.minimum}"
            raise BadArguments(f"{self.name} {least}")
        if self.maximum is not None and len(found) > self.maximum:
            raise BadArguments(f"{self.name} is longer than {self.maximum} characters")
        return found

    def _environment(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise BadArguments(f"{self.name} is not an object of strings")
        self._few(value)
        for key in value:
            if re.fullmatch(_VARIABLE, key) is None:
                raise BadArguments(f"every key of {self.name} is a shell identifier: {_VARIABLE}")
        return {key: self._text(item) for key, item in value.items()}

    def _few(self, found: Sized) -> None:
        if len(found) > MAX_ITEMS:
            raise BadArguments(f"{self.name} has more than {MAX_ITEMS} entries")

    def _text(self, text: object) -> str:
        if not isinstance(text, str):
            raise BadArguments(f"{self.name} is not a string, or holds something else")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise BadArguments(f"{self.name} holds half of a surrogate pair") from None
        return text


def schema_of(params: Sequence[Param]) -> dict[str, Any]:
    """The schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": {param.name: param.schema() for param in params},
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }


def checked(params: Sequence[Param], given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments, with defaults for those that are missing or null. Raises BadArguments."""
    known = [param.name for param in params]
    if any(name not in known for name in given):
        raise BadArguments(f"unknown arguments; there are: {', '.join(known) or 'none'}")
    found: dict[str, Any] = {}
    for param in params:
        value = given.get(param.name)
        if value is not None:
            found[param.name] = param.checked(value)
        elif param.required:
            raise BadArguments(f"{param.name} is missing")
        else:
            found[param.name] = param.default
    return found
