"""Parameters of tools: one declaration gives the JSON schema for clients and the check here.

An error about an argument never contains its value, which may be a secret.
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
"""Maximum number of entries of a list or an object."""
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]*"


class BadArguments(BadRequest):
    """The arguments do not match the schema of the tool."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter. `minimum` and `maximum` limit an integer, or the length of a string.

    `choices` lists the allowed values of a string. An optional parameter with `default` None has
    the value None if it is left out.
    """

    name: str
    kind: Kind
    description: str
    required: bool = False
    default: object = None
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the parameter."""
        schema: dict[str, Any]
        if self.kind == "strings":
            schema = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ITEMS}
        elif self.kind == "environment":
            schema = {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "propertyNames": {"pattern": f"^{_VARIABLE}$"},
                "maxProperties": MAX_ITEMS,
            }
        else:
            schema = {"type": self.kind} | self._bounds()
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return schema | {"description": self.description}

    def _bounds(self) -> dict[str, Any]:
        low, high = ("minLength", "maxLength") if self.kind == "string" else ("minimum", "maximum")
        bounds = {low: self.minimum, high: self.maximum}
        return {name: value for name, value in bounds.items() if value is not None}

    def check(self, value: object) -> object:
        """Return the valid value. Raises BadArguments, which names the parameter."""
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
            raise BadArguments(f"{self.name} must be a whole number")
        if self.minimum is not None and value < self.minimum:
            raise BadArguments(f"{self.name} must be at least {self.minimum}")
        if self.maximum is not None and value > self.maximum:
            raise BadArguments(f"{self.name} must be at most {self.maximum}")
        return value

    def _boolean(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise BadArguments(f"{self.name} must be true or false")
        return value

    def _strings(self, value: object) -> list[str]:
        if not isinstance(value, list):
            raise BadArguments(f"{self.name} must be a list of strings")
        self._check_count(value)
        return [self._text(item, "every item of ") for item in value]

    def _string(self, value: object) -> str:
        text = self._text(value)
        if self.choices and text not in self.choices:
            raise BadArguments(f"{self.name} must be one of: {', '.join(self.choices)}")
        if self.minimum is not None and len(text) < self.minimum:
            limit = (
                "not be empty" if self.minimum == 1 else f"have at least {self.minimum} characters"
            )
            raise BadArguments(f"{self.name} must {limit}")
        if self.maximum is not None and len(text) > self.maximum:
            raise BadArguments(f"{self.name} must have at most {self.maximum} characters")
        return text

    def _environment(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise BadArguments(f"{self.name} must be an object of strings")
        self._check_count(value)
        for key in value:
            if re.fullmatch(_VARIABLE, key) is None:
                raise BadArguments(
                    f"every key of {self.name} must be a shell identifier: {_VARIABLE}"
                )
        return {key: self._text(item, "every value of ") for key, item in value.items()}

    def _check_count(self, items: Sized) -> None:
        if len(items) > MAX_ITEMS:
            raise BadArguments(f"{self.name} must have at most {MAX_ITEMS} entries")

    def _text(self, text: object, prefix: str = "") -> str:
        """Check one string. `prefix` comes before the name in an error."""
        if not isinstance(text, str):
            raise BadArguments(f"{prefix}{self.name} must be a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise BadArguments(
                f"{prefix}{self.name} must not contain half of a surrogate pair"
            ) from None
        return text


def schema_of(params: Sequence[Param]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these parameters."""
    return {
        "type": "object",
        "properties": {param.name: param.schema() for param in params},
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }


def check_arguments(params: Sequence[Param], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all parameters, with defaults for missing and null arguments.

    Raises BadArguments.
    """
    names = [param.name for param in params]
    if any(name not in names for name in arguments):
        raise BadArguments(f"unknown arguments; this tool takes: {', '.join(names) or 'none'}")
    values: dict[str, Any] = {}
    for param in params:
        value = arguments.get(param.name)
        if value is not None:
            values[param.name] = param.check(value)
        elif param.required:
            raise BadArguments(f"{param.name} is missing")
        else:
            values[param.name] = param.default
    return values
