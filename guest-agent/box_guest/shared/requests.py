"""One request of the daemon to the agent on a session channel of its own.

The daemon writes one line of JSON. The agent answers with one line: `{"ok": true, "result": {...}}`
or `{"ok": false, "error": text, "kind": kind}`. What follows the two lines depends on the request.
"""

from __future__ import annotations

import json
from typing import Any

MAX_REQUEST = 1 << 20
"""Maximum size of the request line in bytes. A command of 128 KiB needs at most 768 KiB."""
MAX_ANSWER = 1 << 20
"""Maximum size of the answer line, in bytes."""
MAX_ERROR = 1000
"""Maximum length of an error text, in characters."""

BAD = "bad"
"""Kind of an error: the request is not valid."""
MISSING = "missing"
"""Kind of an error: what the request names does not exist."""
CONFLICT = "conflict"
"""Kind of an error: the current state does not allow the request."""
FULL = "full"
"""Kind of an error: a limit of the box is reached."""
FAILED = "failed"
"""Kind of an error: the box could not do it."""
KINDS = (BAD, MISSING, CONFLICT, FULL, FAILED)


class MalformedMessage(ValueError):
    """The other side sent something that is not a valid message; the text gives the reason."""


class Refused(Exception):
    """The agent refuses a request. `kind` is one of `KINDS`; the text is meant for the user."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def encode_line(message: dict[str, Any], limit: int) -> bytes:
    """Return a message as one line. Raises MalformedMessage above `limit` bytes."""
    line = json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
    if len(line) > limit:
        raise MalformedMessage(f"the message has {len(line)} bytes; at most {limit} are allowed")
    return line


def decode_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line. Raises MalformedMessage for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise MalformedMessage("the line is not JSON") from None
    if not isinstance(message, dict):
        raise MalformedMessage("the line is not a JSON object")
    return message


def success(result: dict[str, Any]) -> bytes:
    """Return the answer line of a request that succeeded."""
    return encode_line({"ok": True, "result": result}, MAX_ANSWER)


def failure(error: Refused) -> bytes:
    """Return the answer line of a request that the agent refuses."""
    message = {"ok": False, "kind": error.kind, "error": str(error)[:MAX_ERROR]}
    return encode_line(message, MAX_ANSWER)


def result_of(line: bytes) -> dict[str, Any]:
    """Return the result in an answer line.

    Raises Refused for the error of the agent, whose text is shortened and printable, and
    MalformedMessage.
    """
    message = decode_line(line)
    result, text, kind = message.get("result"), message.get("error"), message.get("kind")
    if message.get("ok") is True and isinstance(result, dict):
        return result
    if message.get("ok") is False and isinstance(text, str) and kind in KINDS:
        raise Refused(kind, printable(text, MAX_ERROR))
    raise MalformedMessage("the line is not an answer")


def printable(text: str, limit: int) -> str:
    """Return the start of a text, with `?` in place of characters that cannot be displayed."""
    return "".join(char if char.isprintable() else "?" for char in text[:limit])


def integer(value: object, least: int, most: int) -> int:
    """Return a whole number within bounds. Raises MalformedMessage; in Python, a bool is an int."""
    if type(value) is not int or not least <= value <= most:
        raise MalformedMessage(f"a number is not a whole number from {least} to {most}")
    return value


def boolean(value: object) -> bool:
    """Return a value that is true or false. Raises MalformedMessage."""
    if not isinstance(value, bool):
        raise MalformedMessage("a value is not true or false")
    return value


class Lines:
    """Splits the bytes of a channel: one line first, then the rest as it arrives."""

    def __init__(self, limit: int) -> None:
        """`limit`: the maximum size of the line in bytes, newline included."""
        self._limit = limit
        self._partial = bytearray()

    def add(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the line without its newline and the bytes after it, or None if it is incomplete.

        Raises MalformedMessage if the line is too long.
        """
        self._partial += data
        end = self._partial.find(b"\n")
        if end < 0 and len(self._partial) < self._limit:
            return None
        if not 0 <= end < self._limit:
            raise MalformedMessage(f"a line is longer than {self._limit} bytes")
        line, rest = bytes(self._partial[:end]), bytes(self._partial[end + 1 :])
        self._partial.clear()
        return line, rest
