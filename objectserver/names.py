"""Encodes object keys as file names. Pure.

Each segment between slashes becomes one name of letters, digits, `-`, `_` and `%XX`. A directory
has that name, an object's file has the suffix `.o`, and an empty segment is `%`. A segment that is
too long for a file name is split: all pieces but the last are directories whose names end in `+`.
So no key names a file outside of its directory, no two keys share a file, and both `a` and `a/b`
can be objects.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

MAX_KEY = 1024
"""Maximum length of a key, in bytes of UTF-8."""
PIECE = 200
"""Maximum length of one piece of an encoded segment, in characters."""
OBJECT = ".o"
"""Suffix of an object's file."""
MORE = "+"
"""Suffix of a directory whose segment continues in the next name."""
EMPTY = "%"
"""Name of an empty segment."""

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class BadKey(ValueError):
    """The key is empty, too long, or contains control characters."""


def check_key(key: str) -> None:
    """Raise BadKey if `key` cannot be an object's key."""
    if not key or _UNFIT.search(key) or len(key.encode("utf-8")) > MAX_KEY:
        raise BadKey(f"a key must be 1 to {MAX_KEY} bytes of UTF-8 without control characters")


def key_to_path(key: str) -> tuple[str, ...]:
    """Return the names of an object's directories and, last, its file. Raises BadKey."""
    check_key(key)
    *directories, last = key.encode("utf-8").split(b"/")
    names = [name for segment in directories for name in _pieces(segment)]
    *more, file = _pieces(last)
    return (*names, *more, file + OBJECT)


def directory_path(segments: list[bytes]) -> tuple[str, ...]:
    """Return the names of the directories that contain the keys below the given whole segments."""
    return tuple(name for segment in segments for name in _pieces(segment))


def decode(name: str) -> bytes:
    """Return the segment (or part of one) that a name without its suffix encodes."""
    return b"" if name == EMPTY else unquote_to_bytes(name)


def _pieces(segment: bytes) -> list[str]:
    encoded = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in segment) or EMPTY
    if len(encoded) <= PIECE:
        return [encoded]
    cuts: list[str] = []
    while len(encoded) > PIECE:
        # A piece that ends inside `%XX` could not be decoded by itself.
        at = PIECE - next((back for back in (1, 2) if encoded[PIECE - back] == "%"), 0)
        cuts.append(encoded[:at] + MORE)
        encoded = encoded[at:]
    return [*cuts, encoded]
