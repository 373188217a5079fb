"""Protocol adapter only. The buffered form of an exec response: one JSON object.

The service buffers the output of a command until the command ends, within the owner's budget. It
encodes the object in pieces while the client reads. So neither the whole object nor both streams in
base64 are ever in memory. *Measured*, a response with 16 MiB of output to a slow client: 17 MiB of
memory; encoded at once: 101 MiB.
"""

from __future__ import annotations

import asyncio
import binascii
import json
from typing import TYPE_CHECKING

from boxd.errors import QuotaExceeded, TooLarge
from boxd.http.requests.errors import JSON_TYPE, Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from boxd.boxes.limits.budgets.output import Room
    from boxd.http.requests.exchange import Exchange

STREAM_BYTES = 16 * 1024 * 1024
"""Maximum size of one stream in bytes."""
TEXT_HEADERS = [(b"content-type", b"text/plain; charset=utf-8")]
EXIT_CODE = b"x-exit-code"
PIECE = 48 * 1024
"""Bytes of a stream that are encoded in one step; a multiple of 3, so base64 needs no padding."""


class BufferedOutput:
    """Both output streams of one command.

    `room`: the part of the owner's budget for them. The caller releases it after the response.
    """

    def __init__(self, room: Room) -> None:
        self._buffers = {name: bytearray() for name in ("stdout", "stderr")}
        self._parts = {name: room.part() for name in self._buffers}
        self._end: tuple[bytes, bytes] | None = None
        """The text of the object before and after the streams, once they are complete."""
        self._code = 0

    async def keep(self, stream: str, data: bytes) -> None:
        """Buffer the next bytes of a stream.

        Raises TooLarge when the stream exceeds STREAM_BYTES, and QuotaExceeded when the buffered
        output of all commands of the owner exceeds the budget.
        """
        buffer = self._buffers[stream]
        if len(buffer) + len(data) > STREAM_BYTES:
            raise TooLarge(
                f"{stream} is longer than {STREAM_BYTES} bytes; omit ?stream=false to stream it"
            )
        if self._parts[stream].grow(len(data)) < len(data):
            raise QuotaExceeded(
                f"{stream} cannot be buffered: the unread output of all your commands exceeds the"
                " limit; omit ?stream=false to stream the output, or wait for the other commands"
            )
        buffer += data

    def end(self, code: int, duration_ms: int) -> None:
        """Record the end of the command; all its output is buffered."""
        self._code = code
        self._end = b'{"exit_code": %d, ' % code, b', "duration_ms": %d}' % duration_ms

    def end_with(self, fields: Mapping[str, object]) -> None:
        """Record that the output is complete. The object has these further fields."""
        self._end = b"{", b", %b" % json.dumps(fields).encode()[1:]

    async def answer_text(self, exchange: Exchange) -> None:
        """Send both streams as text, standard output first, with the exit code in a header.

        Otherwise as `answer`.
        """
        if self._end is None:
            return
        size = sum(len(buffer) for buffer in self._buffers.values())
        headers = [
            *TEXT_HEADERS,
            (b"content-length", b"%d" % size),
            (EXIT_CODE, b"%d" % self._code),
        ]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        for buffer in self._buffers.values():
            for start in range(0, len(buffer), PIECE):
                piece = bytes(buffer[start : start + PIECE])
                message = {"type": "http.response.body", "body": piece, "more_body": True}
                await exchange.send(message)
                await asyncio.sleep(0)  # other tasks get a turn, even if this client is fast
        await exchange.send({"type": "http.response.body"})

    async def answer(self, exchange: Exchange) -> None:
        """Send the object. A long object goes out in pieces, as fast as the client reads.

        Sends nothing if the command has not ended, because the client has then disconnected.
        """
        if self._end is None:
            return
        layout = list(self._layout(*self._end))
        if sum(len(buffer) for buffer in self._buffers.values()) <= PIECE:
            body = b"".join(piece for part in layout for piece in _encoded(part))
            await exchange.answer(Answer(200, body))
            return
        size = sum(_encoded_size(part) for part in layout)
        headers = [JSON_TYPE, (b"content-length", b"%d" % size)]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in (piece for part in layout for piece in _encoded(part)):
            await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # other tasks get a turn, even if this client is fast
        await exchange.send({"type": "http.response.body"})

    def _layout(self, head: bytes, tail: bytes) -> Iterator[bytes | bytearray]:
        """Yield the parts of the object in order: `bytes` as they are, streams (bytearray) raw."""
        yield head
        yield b'"stdout": "'
        yield self._buffers["stdout"]
        yield b'", "stderr": "'
        yield self._buffers["stderr"]
        yield b'"'
        yield tail


def _encoded(part: bytes | bytearray) -> Iterator[bytes]:
    if isinstance(part, bytes):
        yield part
        return
    for start in range(0, len(part), PIECE):
        yield binascii.b2a_base64(part[start : start + PIECE], newline=False)


def _encoded_size(part: bytes | bytearray) -> int:
    return len(part) if isinstance(part, bytes) else (len(part) + 2) // 3 * 4
