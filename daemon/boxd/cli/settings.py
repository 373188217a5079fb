"""Build a `Config` from parsed flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.config import EXTERNAL_CACHE_SIZE, Config, flags
from boxd.errors import BadRequest
from boxd.names.flag import with_values

if TYPE_CHECKING:
    import argparse

    from boxd.names.flag import Flag


def destination(flag: Flag) -> str:
    """Return the attribute of the parsed arguments that holds the flag's text.

    The flag's own spelling cannot collide with the positional arguments of a command.
    """
    return flag.name


def config_of(arguments: argparse.Namespace) -> Config:
    """Return the configuration that a command line asks for.

    A field keeps its default if the command line has no flag for it. Raises BadRequest with the
    name of the wrong flag.
    """
    flag_values = vars(arguments)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field_name, flag in flags():
        if destination(flag) not in flag_values:
            continue
        if field_name in sources:
            raise BadRequest(f"give {sources[field_name]} or {flag.name}, not both")
        sources[field_name] = flag.name
        value = flag_values[destination(flag)]
        values[field_name] = value if flag.parse is None else flag.parse(value, flag.name)
    if "store_file" in values:
        values.setdefault("cache_size", EXTERNAL_CACHE_SIZE)
    return with_values(Config(), values)
