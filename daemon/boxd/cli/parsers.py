"""Build argparse parsers from the declarations of flags in `boxd.config`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from boxd.cli.settings import CONFIG_FILE, GROUPS, destination
from boxd.cli.settings_file import DEFAULT_PATH
from boxd.config import default_text, default_value, flags
from boxd.names.flag import Group

if TYPE_CHECKING:
    from boxd.names.flag import Flag

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    """The object to which a module adds its commands."""

COMMON = (Group.COMMON,)
"""Groups that every command takes."""
SERVERS = (*COMMON, Group.STORES, Group.BACKEND)
"""Groups for commands that use the stores of a service."""
BACKUPS = (*SERVERS, Group.BACKUPS)
"""Groups for `backup` and `restore`."""
STARTING = (*COMMON, Group.LISTENERS, Group.IMAGES, Group.STORES, Group.BACKEND)
"""Groups that determine whether a service can start."""
EVERYTHING = tuple(Group)
"""Groups for `serve` and `down`."""


def parent(groups: tuple[Group, ...]) -> argparse.ArgumentParser:
    """Return a parent parser with the flags of some groups.

    The parsed arguments contain only flags that the command line gives.
    """
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for group in groups:
        section = parser.add_argument_group(group.value)
        for field_name, flag in flags():
            if flag.group is group:
                _add(section, field_name, flag)
        if group is Group.COMMON:
            section.add_argument(
                "--config",
                dest=CONFIG_FILE,
                metavar="FILE",
                help=f"read settings from this TOML file (default: {DEFAULT_PATH}, if it exists)",
            )
    parser.set_defaults(**{GROUPS: groups})
    return parser


def _add(section: argparse._ArgumentGroup, field_name: str, flag: Flag) -> None:
    names = (flag.name, *flag.aliases)
    place = destination(flag)
    if flag.is_switch:
        value = not default_value(field_name)
        section.add_argument(*names, dest=place, action="store_const", const=value, help=flag.help)
        return
    text = f"{flag.help} (default: {default_text(field_name, flag)})".replace("%", "%%")
    if flag.choices:
        section.add_argument(*names, dest=place, choices=flag.choices, help=text)
    else:
        section.add_argument(*names, dest=place, metavar=flag.metavar, help=text)
