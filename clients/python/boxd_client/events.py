"""Event streams: a parser of server-sent events, and the events of commands. It does no I/O."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from typing import Any

from boxd_client.errors import ConnectionLost, ProtocolError
from boxd_client.models import (
    BatchError,
    BatchExit,
    BatchOutput,
    Change,
    Dropped,
    Exit,
    Output,
    decode,
)

MAX_EVENT = 4 * 1024 * 1024
"""Maximum size of one event and of one line, in bytes. The service sends at most 90 KiB."""
STREAMS = ("stdout", "stderr")
MAX_CODE = 255


@dataclass(frozen=True)
class Event:
    """One server-sent event. `id` is that of this event, or None."""

    name: str
    data: str
    id: str | None = None


class EventParser:
    """Splits bytes into events. Lines end with LF, CR LF or CR; comments are dropped."""

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._scanned = 0
        self._name = ""
        self._data: list[str] = []
        self._size = 0
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that the chunk completes. Raises ProtocolError."""
        self._buffer += chunk
        events: list[Event] = []
        while (line := self._line()) is not None:
            if line:
                self._field(line)
            elif (event := self._event()) is not None:
                events.append(event)
        if len(self._buffer) > self._limit:
            raise ProtocolError(f"a line of the event stream exceeds {self._limit} bytes")
        return events

    @property
    def pending(self) -> bool:
        """Return whether an event has begun and is not complete."""
        return bool(self._buffer or self._data or self._name)

    def _line(self) -> bytes | None:
        """Remove the next complete line from the buffer and return it without its end."""
        ends = [
            place
            for place in (self._buffer.find(end, self._scanned) for end in (b"\n", b"\r"))
            if place >= 0
        ]
        if not ends:
            self._scanned = len(self._buffer)
            return None
        end = min(ends)
        size = 1
        if self._buffer[end : end + 1] == b"\r":
            if end + 1 == len(self._buffer):
                return None  # an LF may follow in the next chunk
            if self._buffer[end + 1 : end + 2] == b"\n":
                size = 2
        line = bytes(self._buffer[:end])
        del self._buffer[: end + size]
        self._scanned = 0
        return line

    def _field(self, line: bytes) -> None:
        if line.startswith(b":"):
            return
        self._size += len(line)
        if self._size > self._limit:
            raise ProtocolError(f"an event exceeds {self._limit} bytes")
        try:
            name, _, value = line.decode("utf-8").partition(":")
        except UnicodeDecodeError:
            raise ProtocolError("the event stream is not UTF-8") from None
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value

    def _event(self) -> Event | None:
        name, data, event_id = self._name, self._data, self._id
        self._name, self._data, self._size, self._id = "", [], 0, None
        if not data and not name:
            return None
        return Event(name or "message", "\n".join(data), event_id)


class CommandEvents:
    """Turns the events of one command into `Output`, `Dropped` and `Exit`.

    `exit` must be the last one. Events with unknown names are ignored.
    """

    def __init__(self) -> None:
        self.exit: Exit | None = None
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS
        }

    def take(self, event: Event) -> Output | Dropped | Exit | None:
        """Return the meaning of an event.

        Raises ProtocolError, or ConnectionLost if the service could not continue.
        """
        if self.exit is not None:
            raise ProtocolError(f"the event {event.name[:40]!r} follows the end of the command")
        if event.name in STREAMS:
            data = decode(event.data)
            text = self._decoders[event.name].decode(data)
            return Output(event.name, data, text)
        if event.name == "dropped":
            return Dropped(_number(_object(event.data), ("bytes", "count")))
        if event.name == "exit":
            self.exit = Exit(exit_code(_object(event.data)))
            return self.exit
        if event.name == "failed":
            raise ConnectionLost(_text(_object(event.data), "error"))
        return None


class BatchEvents:
    """Turns the events of a command in several boxes into values. `done` must be the last one."""

    def __init__(self) -> None:
        self.done = False
        self._ended: set[str] = set()

    def take(self, event: Event) -> BatchOutput | BatchExit | BatchError | None:
        """Return the meaning of an event. Raises ProtocolError."""
        if self.done:
            raise ProtocolError(f"the event {event.name[:40]!r} follows the last one")
        if event.name == "done":
            self.done = True
            return None
        if event.name not in (*STREAMS, "exit", "failed"):
            return None
        body = _object(event.data)
        box = _text(body, "box")
        if box in self._ended:
            raise ProtocolError(f"the event {event.name!r} follows the end of box {box[:80]!r}")
        if event.name in STREAMS:
            return BatchOutput(box, event.name, decode(_text(body, "data")))
        self._ended.add(box)
        if event.name == "exit":
            return BatchExit(box, exit_code(body))
        return BatchError(box, _number(body, ("status",)), _text(body, "error"))


class WatchEvents:
    """Turns the events of a watch into `Change`. `end` must be the last one."""

    def __init__(self) -> None:
        self.ended = False

    def take(self, event: Event) -> Change | None:
        """Return the meaning of an event.

        Raises ProtocolError, or ConnectionLost if the service could not continue.
        """
        if self.ended:
            raise ProtocolError(f"the event {event.name[:40]!r} follows the last one")
        if event.name == "change":
            return Change.from_json(_object(event.data))
        if event.name == "overflow":
            return Change(kind="overflow")
        if event.name == "failed":
            raise ConnectionLost(_text(_object(event.data), "error"))
        self.ended = event.name == "end"
        return None


def exit_code(body: dict[str, Any]) -> int:
    """Return the exit code in the data of `exit`. Raises ProtocolError."""
    code = body.get("code")
    if type(code) is not int or not 0 <= code <= MAX_CODE:
        raise ProtocolError("the end of a command has no exit code")
    return code


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("the data of an event is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("the data of an event is not a JSON object")
    return value


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"the data of an event has no text {name!r}")
    return value


def _number(body: dict[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        value = body.get(name)
        if type(value) is int:
            return value
    raise ProtocolError(f"the data of an event has no number {names[0]!r}")
