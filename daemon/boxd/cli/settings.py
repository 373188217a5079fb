"""Build a `Config` from parsed flags and the settings file.

A flag of the command line precedes the same setting in the file; the file precedes the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.cli import settings_file
from boxd.config import EXTERNAL_CACHE_SIZE, Config, default_value, flags
from boxd.errors import BadRequest
from boxd.names.flag import with_values

if TYPE_CHECKING:
    import argparse

    from boxd.names.flag import Flag

CONFIG_FILE = "config_file"
"""The attribute of the parsed arguments that holds the path of `--config`, if it is given."""
GROUPS = "groups"
"""The attribute of the parsed arguments that holds the groups of flags of the command."""
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one field of `Config`."""

    flag: Flag
    text: str
    """The value as the operator wrote it."""
    value: object
    source: str
    """`COMMAND_LINE`, or the path of the settings file."""


def destination(flag: Flag) -> str:
    """Return the attribute of the parsed arguments that holds the flag's text.

    The flag's own spelling cannot collide with the positional arguments of a command.
    """
    return flag.name


def config_of(arguments: argparse.Namespace) -> Config:
    """Return the configuration that a command line and its settings file ask for.

    A field keeps its default if neither has a value for it. Raises BadRequest with the name of the
    wrong flag, or with the file and the key.
    """
    values: dict[str, Any] = {
        field_name: setting.value for field_name, setting in settings_of(arguments).items()
    }
    if "store_file" in values:
        values.setdefault("cache_size", EXTERNAL_CACHE_SIZE)
    return with_values(Config(), values)


def settings_of(arguments: argparse.Namespace) -> dict[str, Setting]:
    """Return the settings that differ from the defaults, by field of `Config`. Raises BadRequest.

    The settings file may contain settings that the command does not take. They are checked for
    their names and types, and have no effect.
    """
    return _of_file(arguments) | _of_command_line(arguments)


def _of_command_line(arguments: argparse.Namespace) -> dict[str, Setting]:
    flag_values = vars(arguments)
    settings: dict[str, Setting] = {}
    for field_name, flag in flags():
        if destination(flag) not in flag_values:
            continue
        _require_one(settings.get(field_name), flag.name, "")
        value = flag_values[destination(flag)]
        parsed = value if flag.parse is None else flag.parse(value, flag.name)
        text = "true" if flag.is_switch else value
        settings[field_name] = Setting(flag, text, parsed, COMMAND_LINE)
    return settings


def _of_file(arguments: argparse.Namespace) -> dict[str, Setting]:
    explicit = getattr(arguments, CONFIG_FILE, None)
    path = settings_file.DEFAULT_PATH if explicit is None else Path(explicit)
    groups = getattr(arguments, GROUPS, ())
    file = settings_file.read(path, required=explicit is not None)
    settings: dict[str, Setting] = {}
    for field_name, flag, text in file.entries():
        if flag.group not in groups or _is_off(flag, text):
            continue
        _require_one(settings.get(field_name), flag.key, f"{path}: ")
        value = not default_value(field_name) if flag.is_switch else file.value(flag, text)
        settings[field_name] = Setting(flag, text, value, str(path))
    return settings


def _is_off(flag: Flag, text: str) -> bool:
    return flag.is_switch and text == "false"


def _require_one(earlier: Setting | None, name: str, place: str) -> None:
    """Raise BadRequest if another flag sets the same field."""
    if earlier is not None:
        other = earlier.flag.key if place else earlier.flag.name
        raise BadRequest(f"{place}give {other} or {name}, not both")
