"""What a program that is being started is handed on its input, and what it says first.

A frame is the length of what follows, four bytes, and words that end with NUL, as those of a
command line and of an environment do. Standard library only, and little of it: what is in here adds
to the start of a command.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_FRAME = 4 << 20
GREETING = b"box-guest hands over, key "
KEY_SIZE = 32
GREETING_SIZE = len(GREETING) + 2 * KEY_SIZE + 1

_LENGTH = struct.Struct(">I")


class MalformedFrame(ValueError):
    """Something else arrived than what was meant to; the text says what."""


def joined(words: Iterable[bytes]) -> bytes:
    """Words as one text. MalformedFrame when one holds a NUL."""
    found = list(words)
    if any(b"\0" in word for word in found):
        raise MalformedFrame("a word holds a NUL character")
    return b"".join(word + b"\0" for word in found)


def split(text: bytes, least: int) -> list[bytes]:
    """The words again. MalformedFrame when it is cut off, or there are not so many."""
    words = text.split(b"\0")
    if words.pop():
        raise MalformedFrame("a list of words is cut off")
    if len(words) < least:
        raise MalformedFrame(f"{len(words)} words are fewer than {least}")
    return words


def variables(env: Mapping[str, str]) -> list[bytes]:
    """An environment as words."""
    return [f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in env.items()]


def environment(words: Iterable[bytes]) -> dict[bytes, bytes]:
    """The environment again. MalformedFrame."""
    found = {}
    for word in words:
        name, sign, value = word.partition(b"=")
        if not name or not sign:
            raise MalformedFrame("a variable has no name or no value")
        found[name] = value
    return found


def framed(text: bytes) -> bytes:
    """A text with its length before it. MalformedFrame when it is longer than MAX_FRAME."""
    if len(text) > MAX_FRAME:
        raise MalformedFrame(f"{len(text)} bytes are more than a frame holds ({MAX_FRAME})")
    return _LENGTH.pack(len(text)) + text


def read(descriptor: int) -> bytes:
    """The text of the next frame, and not a byte of what follows it. MalformedFrame, OSError."""
    (size,) = _LENGTH.unpack(_exactly(descriptor, _LENGTH.size))
    if size > MAX_FRAME:
        raise MalformedFrame(f"a frame of {size} bytes is longer than {MAX_FRAME}")
    return _exactly(descriptor, size)


def greeting(key: bytes) -> bytes:
    """The line with which the program shows its public key."""
    return GREETING + key.hex().encode("ascii") + b"\n"


def key_in(line: bytes) -> bytes:
    """The key in such a line. MalformedFrame when it is another one."""
    digits = line[len(GREETING) : -1]
    if len(line) != GREETING_SIZE or not line.startswith(GREETING) or not line.endswith(b"\n"):
        raise MalformedFrame("it says something else than its key")
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise MalformedFrame("it says something else than its key") from None


def _exactly(descriptor: int, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = os.read(descriptor, size - len(found))
        if not data:
            raise MalformedFrame("the input ended in the middle of a frame")
        found += data
    return bytes(found)
