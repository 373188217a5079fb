"""Frames on the input of a program that is being started, and the line that it writes first.

A frame is its length in four bytes (big-endian), then words that end with NUL, like those of a
command line or an environment. This module imports little, and only from the standard library: its
import time adds to the start of a command.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_FRAME = 4 << 20
"""Maximum size of a frame, in bytes."""
GREETING = b"box-guest hands over, key "
"""Start of the program's first line; the public key follows in hexadecimal digits."""
KEY_SIZE = 32
"""Size of the public key in bytes."""
GREETING_SIZE = len(GREETING) + 2 * KEY_SIZE + 1
"""Size of the whole first line in bytes, newline included."""

_LENGTH = struct.Struct(">I")


class MalformedFrame(ValueError):
    """The input is not a valid frame or greeting; the text gives the reason."""


def joined(words: Iterable[bytes]) -> bytes:
    """Join words into one byte string, with a NUL after each.

    Raises MalformedFrame if a word contains NUL.
    """
    items = list(words)
    if any(b"\0" in word for word in items):
        raise MalformedFrame("a word contains a NUL character")
    return b"".join(word + b"\0" for word in items)


def split(text: bytes, least: int) -> list[bytes]:
    """Split a text into at least `least` words.

    Raises MalformedFrame if the text is cut off or has fewer words.
    """
    words = text.split(b"\0")
    if words.pop():
        raise MalformedFrame("the list of words is cut off")
    if len(words) < least:
        raise MalformedFrame(f"the list has {len(words)} words; at least {least} are needed")
    return words


def variables(env: Mapping[str, str]) -> list[bytes]:
    """Convert an environment to words of the form `NAME=value`."""
    return [f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in env.items()]


def environment(words: Iterable[bytes]) -> dict[bytes, bytes]:
    """Convert words of the form `NAME=value` to an environment. Raises MalformedFrame."""
    env = {}
    for word in words:
        name, sign, value = word.partition(b"=")
        if not name or not sign:
            raise MalformedFrame("a variable has no name or no value")
        env[name] = value
    return env


def framed(text: bytes) -> bytes:
    """Prefix a text with its length. Raises MalformedFrame if it is longer than MAX_FRAME bytes."""
    if len(text) > MAX_FRAME:
        raise MalformedFrame(f"{len(text)} bytes do not fit into a frame (at most {MAX_FRAME})")
    return _LENGTH.pack(len(text)) + text


def read(descriptor: int) -> bytes:
    """Read the next frame's text from a descriptor, and no byte after it.

    Raises MalformedFrame or OSError.
    """
    (size,) = _LENGTH.unpack(_exactly(descriptor, _LENGTH.size))
    if size > MAX_FRAME:
        raise MalformedFrame(f"a frame has {size} bytes; at most {MAX_FRAME} are allowed")
    return _exactly(descriptor, size)


def greeting(key: bytes) -> bytes:
    """Return the line with which the program sends its public key."""
    return GREETING + key.hex().encode("ascii") + b"\n"


def key_in(line: bytes) -> bytes:
    """Return the public key in a greeting line. Raises MalformedFrame for any other line."""
    digits = line[len(GREETING) : -1]
    if len(line) != GREETING_SIZE or not line.startswith(GREETING) or not line.endswith(b"\n"):
        raise MalformedFrame("the program sent something other than its key")
    try:
        return bytes.fromhex(digits.decode("ascii"))
    except ValueError:
        raise MalformedFrame("the program sent something other than its key") from None


def _exactly(descriptor: int, size: int) -> bytes:
    buffer = bytearray()
    while len(buffer) < size:
        data = os.read(descriptor, size - len(buffer))
        if not data:
            raise MalformedFrame("the input ended in the middle of a frame")
        buffer += data
    return bytes(buffer)
