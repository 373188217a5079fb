"""Command-line flags of the daemon: how a field of the configuration declares its flag."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import DataclassInstance

    S = TypeVar("S", bound=DataclassInstance)

_FLAGS = "flags"
"""The key of a field's metadata that holds its flags."""


class Group(Enum):
    """A group of flags. A command takes whole groups. The value is the title in help texts."""

    COMMON = "state and logs"
    LISTENERS = "listeners"
    IMAGES = "images"
    STORES = "database and object store"
    BACKEND = "backend"
    BOXES = "boxes"
    LIMITS = "limits of this host"
    DRIVES = "drives (/wrk)"
    SSH = "SSH"
    HTTP = "HTTP API, previews and MCP"
    TRACES = "traces"
    SCHEDULE = "scheduled backups"
    BACKUPS = "backups"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command line that sets one field of `Config`."""

    name: str
    group: Group
    help: str
    """What the flag does, as an imperative without the default."""
    metavar: str | None = None
    """The kind of value that help texts show. None: a switch, or a flag with `choices`."""
    parse: Callable[[str, str], object] | None = None
    """Returns the field's value for a text and the flag's name, or raises BadRequest.
    None: the text is the value."""
    choices: tuple[str, ...] = ()
    default: str | None = None
    """The default that help texts show, if it is not the text of the field's default."""
    aliases: tuple[str, ...] = ()
    holds_secret: Callable[[str], bool] | None = None
    """Returns whether a text contains a secret. Such a text is valid in one place only: a settings
    file that nobody but its owner can read. `parse` refuses it."""

    @property
    def key(self) -> str:
        """The name of the flag in a settings file."""
        return self.name.removeprefix("--")

    @property
    def is_list(self) -> bool:
        """Whether the value is a list with commas."""
        return self.metavar is not None and self.metavar.endswith(",...")

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value. It then inverts the field's default."""
        return self.metavar is None and not self.choices


def declared(*flags: Flag) -> dict[str, tuple[Flag, ...]]:
    """Return the metadata of a field that these flags set."""
    return {_FLAGS: flags}


def flags_of(settings: DataclassInstance, prefix: str = "") -> Iterator[tuple[str, Flag]]:
    """Yield each flag of `settings` with the name of its field, in the order of the fields.

    A field that holds a group of settings has no flag of its own. The name of a field of the group
    has the name of the group and a dot before it.
    """
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if is_dataclass(value) and not isinstance(value, type) and _FLAGS not in setting.metadata:
            yield from flags_of(value, f"{prefix}{setting.name}.")
        for flag in setting.metadata.get(_FLAGS, ()):
            yield prefix + setting.name, flag


def with_values(settings: S, values: Mapping[str, Any]) -> S:
    """Return a copy of `settings` with other values, by the names that `flags_of` yields."""
    changes: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, dot, rest = name.partition(".")
        if dot:
            groups.setdefault(group, {})[rest] = value
        else:
            changes[name] = value
    for group, inner in groups.items():
        changes[group] = with_values(getattr(settings, group), inner)
    return replace(settings, **changes)
