"""Object keys as file names. Pure.

Each segment between slashes becomes one name of letters, digits, `-`, `_` and `%XX`; a directory is
that name, an object's file has `.o` behind it, and an empty segment is `%`. A segment too long for
a file name is cut: all pieces but the last are directories whose names end in `+`. So no key names
a file outside of its directory, no two keys share a file, and `a` can be an object beside `a/b`.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

MAX_KEY = 1024
"""Longest key, bytes of UTF-8."""
PIECE = 200
"""Longest encoded piece of a segment."""
OBJECT = ".o"
MORE = "+"
EMPTY = "%"

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class BadKey(ValueError):
    """A key that is empty, too long, or cannot stand in an answer (control characters)."""


def check_key(key: str) -> None:
    """Raises BadKey when `key` cannot be an object's key."""
    if not key or _UNFIT.search(key) or len(key.encode("utf-8")) > MAX_KEY:
        raise BadKey(f"a key is 1 to {MAX_KEY} bytes of UTF-8 without control characters")


def key_to_path(key: str) -> tuple[str, ...]:
    """Names of the directories and, last, the file of an object. Raises BadKey."""
    check_key(key)
    *directories, last = key.encode("utf-8").split(b"/")
    names = [name for segment in directories for name in _pieces(segment)]
    *more, file = _pieces(last)
    return (*names, *more, file + OBJECT)


def directory_path(segments: list[bytes]) -> tuple[str, ...]:
    """Names of the directories that hold the keys below the given whole segments."""
    return tuple(name for segment in segments for name in _pieces(segment))


def decode(name: str) -> bytes:
    """The segment (or part of one) that a name without its suffix stands for."""
    return b"" if name == EMPTY else unquote_to_bytes(name)


def _pieces(segment: bytes) -> list[str]:
    encoded = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in segment) or EMPTY
    if len(encoded) <= PIECE:
        return [encoded]
    cuts: list[str] = []
    while len(encoded) > PIECE:
        # A cut inside `%XX` would not decode by itself.
        at = PIECE - next((back for back in (1, 2) if encoded[PIECE - back] == "%"), 0)
        cuts.append(encoded[:at] + MORE)
        encoded = encoded[at:]
    return [*cuts, encoded]
