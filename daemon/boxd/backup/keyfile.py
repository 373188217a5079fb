"""The key of backups: 32 random bytes in a file of mode 0600. No archive or target contains it.

The key and an archive together give access to the whole control plane. Without the key an archive
is useless.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from boxd.embedded.files import sync_directory
from boxd.errors import BadRequest, Conflict

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 32


class Key:
    """A key. Its `repr` shows the name of its file only."""

    __slots__ = ("_value", "file")

    def __init__(self, value: bytes, file: Path) -> None:
        self._value = value
        self.file = file

    def reveal(self) -> bytes:
        """Return the key itself."""
        return self._value

    def __repr__(self) -> str:
        return f"Key({self.file})"


def read_key(path: Path) -> Key:
    """Return the key in a file.

    Raises BadRequest if the file is unreadable, readable by others, or not a key.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            value = file.read(SIZE + 1)
    except OSError as error:
        raise BadRequest(
            f"{path}: {error.strerror}; `boxd backup --new-key FILE` creates a key"
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise BadRequest(f"{path} is readable by others; run: chmod 600 {path}")
    if len(value) != SIZE:
        raise BadRequest(
            f"{path} is not a key of {SIZE} bytes; `boxd backup --new-key FILE` creates one"
        )
    return Key(value, path)


def make_key(path: Path) -> None:
    """Write a new key into a new file.

    Raises Conflict if the file exists, and BadRequest if it cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(os.urandom(SIZE))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    except FileExistsError:
        raise Conflict(
            f"{path} exists and is never overwritten, because archives may need its key; "
            "give the name of a new file"
        ) from None
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from None
