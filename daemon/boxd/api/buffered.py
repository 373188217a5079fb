"""Protocol adapter only. The buffered form of an exec answer: one JSON object.

What a command says is held until its end, within its owner's allowance. It is encoded piece by
piece as the client takes it: the whole object, or both streams in base64, never stand in memory.
*Measured*, an answer with 16 MiB of output to a client that takes its time: 17 MiB, made whole 101.
"""

from __future__ import annotations

import asyncio
import binascii
from typing import TYPE_CHECKING

from boxd.api.errors import JSON_TYPE, Answer
from boxd.errors import QuotaExceeded, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.api.exchange import Exchange
    from boxd.boxes.allowance import Room

STREAM_BYTES = 16 * 1024 * 1024
"""Most bytes of one stream."""
PIECE = 48 * 1024
"""Bytes of a stream that are encoded at once; a multiple of three, so that base64 needs no fill."""


class BufferedOutput:
    """Both streams of one command, in a room that its caller gives back once they are sent."""

    def __init__(self, room: Room) -> None:
        self._held = {name: bytearray() for name in ("stdout", "stderr")}
        self._parts = {name: room.part() for name in self._held}
        self._end: tuple[int, int] | None = None
        """Its exit code, and how many milliseconds it took."""

    async def keep(self, stream: str, data: bytes) -> None:
        """Takes the next bytes of a stream.

        Raises TooLarge when the stream is longer than an answer has room for, QuotaExceeded when
        the owner's other commands hold too much.
        """
        held = self._held[stream]
        if len(held) + len(data) > STREAM_BYTES:
            raise TooLarge(
                f"{stream} is more than {STREAM_BYTES} bytes; leave out ?stream=false to have it"
                " streamed"
            )
        if self._parts[stream].grow(len(data)) < len(data):
            raise QuotaExceeded(
                f"{stream} has no more room: what your commands have said and nobody has taken yet"
                " is too much; leave out ?stream=false to have it streamed, or wait for the others"
            )
        held += data

    def end(self, code: int, duration_ms: int) -> None:
        """The command has ended, and all its output is here."""
        self._end = code, duration_ms

    async def answer(self, exchange: Exchange) -> None:
        """Sends the object, a long one in pieces: each when the client has taken those before.

        Nothing before the command has ended: its client was gone then.
        """
        if self._end is None:
            return
        layout = list(self._layout(*self._end))
        if sum(len(held) for held in self._held.values()) <= PIECE:
            body = b"".join(piece for part in layout for piece in _encoded(part))
            await exchange.answer(Answer(200, body))
            return
        size = sum(_encoded_size(part) for part in layout)
        headers = [JSON_TYPE, (b"content-length", b"%d" % size)]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in (piece for part in layout for piece in _encoded(part)):
            await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # others have their turn, however fast this client is
        await exchange.send({"type": "http.response.body"})

    def _layout(self, code: int, duration_ms: int) -> Iterator[bytes | bytearray]:
        """The object in its order: `bytes` as they are, and between them the streams, raw."""
        yield b'{"exit_code": %d' % code
        for name, held in self._held.items():
            yield b', "%b": "' % name.encode()
            yield held
            yield b'"'
        yield b', "duration_ms": %d}' % duration_ms


def _encoded(part: bytes | bytearray) -> Iterator[bytes]:
    if isinstance(part, bytes):
        yield part
        return
    for start in range(0, len(part), PIECE):
        yield binascii.b2a_base64(part[start : start + PIECE], newline=False)


def _encoded_size(part: bytes | bytearray) -> int:
    return len(part) if isinstance(part, bytes) else (len(part) + 2) // 3 * 4
