"""The settings file: TOML whose keys are the names of flags without their dashes."""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.config import flags
from boxd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.names.flag import Flag

DEFAULT_PATH = Path("/etc/boxd/boxd.toml")
MAX_SIZE = 1 << 20
"""Maximum size of a settings file, in bytes."""
_MAX_KEY = 64
"""Maximum length of a key in an error text, in characters."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file. `mode` has its permissions."""

    path: Path
    table: dict[str, object] = field(repr=False)
    mode: int

    def entries(self) -> Iterator[tuple[str, Flag, str]]:
        """Yield each setting: the field of `Config`, its flag, and the value as a flag has it.

        Switches have the text `true` or `false`. Raises BadRequest for an unknown key or a value
        of a wrong type.
        """
        by_key = {flag.key: (field_name, flag) for field_name, flag in flags()}
        for key, value in self.table.items():
            if key not in by_key:
                raise BadRequest(f"{self.path}: {_unknown(key, value, list(by_key))}")
            field_name, flag = by_key[key]
            yield field_name, flag, self._text(flag, value)

    def value(self, flag: Flag, text: str) -> object:
        """Return the value of a field for a text of the file. Raises BadRequest.

        A text with a secret is valid if nobody but the owner of the file can read it.
        """
        if flag.holds_secret is not None and flag.holds_secret(text):
            if self.mode & 0o077:
                raise BadRequest(
                    f"{self.path}: {flag.key} contains a secret, and others can read the file; "
                    f"run: chmod 600 {self.path}"
                )
            return text
        return text if flag.parse is None else flag.parse(text, f"{self.path}: {flag.key}")

    def _text(self, flag: Flag, value: object) -> str:
        place = f"{self.path}: {flag.key}"
        if flag.is_switch:
            if not isinstance(value, bool):
                raise BadRequest(f"{place} must be true or false")
            return "true" if value else "false"
        if flag.is_list and isinstance(value, list):
            if not all(isinstance(item, str) for item in value):
                raise BadRequest(f"{place} must be a list of strings")
            return ",".join(map(str, value))
        if isinstance(value, bool) or not isinstance(value, str | int):
            example = f'"{flag.choices[0] if flag.choices else flag.metavar}"'
            raise BadRequest(f"{place} must be a string, for example {flag.key} = {example}")
        if flag.choices and value not in flag.choices:
            raise BadRequest(f"{place} must be one of: {', '.join(flag.choices)}")
        return str(value)


def read(path: Path, *, required: bool) -> SettingsFile:
    """Return the settings file at a path. Raises BadRequest.

    `required` false: a file that does not exist is empty.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_SIZE + 1)
    except FileNotFoundError as error:
        if not required:
            return SettingsFile(path, {}, 0o600)
        raise BadRequest(f"{path}: {error.strerror}; create it, or omit --config") from None
    except OSError as error:
        raise BadRequest(
            f"{path}: {error.strerror}; run the command as the owner of the file, or give another "
            "file with --config FILE"
        ) from None
    if len(data) > MAX_SIZE:
        raise BadRequest(f"{path} is larger than {MAX_SIZE} bytes; give a TOML file of settings")
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode) and mode & 0o022:
        raise BadRequest(f"others can change {path}; run: chmod go-w {path}")
    try:
        return SettingsFile(path, tomllib.loads(data.decode()), mode)
    except UnicodeDecodeError:
        raise BadRequest(f"{path} is not UTF-8 text; give a TOML file of settings") from None
    except tomllib.TOMLDecodeError as error:
        raise BadRequest(f"{path} is not valid TOML: {error}") from None


def _unknown(key: str, value: object, keys: list[str]) -> str:
    """Return the text of the error about an unknown key."""
    name = repr(key[:_MAX_KEY])
    if isinstance(value, dict):
        return f"{name} is a table; write all settings at the top of the file, without tables"
    typed = key[:_MAX_KEY].lower().replace("_", "-").removeprefix("--")
    near = difflib.get_close_matches(typed, keys, n=1)
    hint = f"did you mean {near[0]}?" if near else "`boxd serve --help` lists the flags"
    return f"there is no setting {name}; {hint}"
