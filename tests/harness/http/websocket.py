"""WebSockets frame by frame, as correct and incorrect clients send them."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tests.harness.http.web import Web

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """Return one frame of a client. Its mask is zero, which leaves the bytes unchanged."""
    head = bytes(((0x80 if fin else 0) | opcode,))
    if len(data) < 126:
        head += bytes((0x80 | len(data),))
    elif len(data) < 65_536:
        head += b"\xfe" + struct.pack(">H", len(data))
    else:
        head += b"\xff" + struct.pack(">Q", len(data))
    return head + bytes(4) + data


def handshake(path: str, *lines: str) -> bytes:
    """Return a request to upgrade."""
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {path} HTTP/1.1",
        "Host: api.test",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode()


@dataclass
class RawSocket:
    """An open WebSocket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame of the server: opcode and payload."""
        async with asyncio.timeout(30):
            first, second = await self.reader.readexactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack(">H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", await self.reader.readexactly(8))
            return first & 0x0F, await self.reader.readexactly(size)

    async def until_close(self) -> tuple[bytes, int, str]:
        """Return all output up to the close frame, and that frame's code and reason."""
        output = b""
        while True:
            opcode, data = await self.frame()
            if opcode == CLOSE:
                return output, struct.unpack(">H", data[:2])[0] if data else 1005, data[2:].decode()
            if opcode == BINARY:
                output += data

    async def until(self, wanted: bytes) -> bytes:
        """Return the output until it contains `wanted`."""
        output = b""
        while wanted not in output:
            opcode, data = await self.frame()
            assert opcode != CLOSE, data
            if opcode == BINARY:
                output += data
        return output

    def send(self, opcode: int, data: bytes = b"") -> None:
        """Send one whole message."""
        self.writer.write(frame(opcode, data))

    def hold(self) -> None:
        """Stop reading."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def go_on(self) -> None:
        """Continue reading."""
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    def close(self) -> None:
        """Drop the connection without a close frame."""
        self.writer.transport.abort()


async def ask(web: Web, sent: bytes) -> tuple[int, bytes, RawSocket]:
    """Send a handshake; return the status of the answer, its head, and the connection."""
    reader, writer = await web.connect()
    writer.write(sent)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    return int(head.split(b" ")[1]), head, RawSocket(reader, writer)


async def connected(web: Web, path: str, *lines: str) -> RawSocket:
    """Return an accepted WebSocket."""
    status, head, opened = await ask(web, handshake(path, *lines))
    assert status == 101, head
    return opened
