"""Sizes in bytes and counts as operators write them: `500M`, `20G`, `3`."""

from __future__ import annotations

import re

from boxd.errors import BadRequest

_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)")
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_COUNT = re.compile(r"[0-9]{1,12}")


def parse_size(text: str, flag: str) -> int:
    """Return the bytes of a size such as `500M`; K, M, G and T are powers of 1024.

    `flag` names the value in errors. Raises BadRequest.
    """
    match = _SIZE.fullmatch(text.upper())
    if match is None:
        raise BadRequest(f"{flag}: {text!r} is not a size, for example 500M, 20G or 0")
    return int(match[1]) << _SHIFTS[match[2]]


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads back."""
    for unit, shift in reversed(_SHIFTS.items()):
        if size and size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def parse_spares(text: str, flag: str) -> int:
    """Return a whole number from 0 to 16. Raises BadRequest."""
    if _COUNT.fullmatch(text) is None or int(text) > 16:
        raise BadRequest(f"{flag} must be a whole number from 0 to 16, not {text}")
    return int(text)


def parse_count(text: str, flag: str) -> int:
    """Return a whole number of at least 1. Raises BadRequest."""
    if _COUNT.fullmatch(text) is None or int(text) < 1:
        raise BadRequest(f"{flag} must be a whole number of at least 1, not {text}")
    return int(text)
