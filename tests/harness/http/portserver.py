"""Servers on ports of boxes that are plain processes, with raw input and output."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from tests.harness.streams import cut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler: TypeAlias = Callable[["Visit"], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Visit:
    """One connection, from the view of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.head = b""
        self.body = b""
        self.gone = asyncio.Event()

    @property
    def target(self) -> bytes:
        """Return the target of the request line."""
        return self.head.split(b" ", 2)[1]

    @property
    def method(self) -> bytes:
        """Return the method of the request line."""
        return self.head.split(b" ", 1)[0]

    @property
    def lines(self) -> list[tuple[bytes, bytes]]:
        """Return the header lines unchanged."""
        found = []
        for line in self.head.split(b"\r\n")[1:]:
            if line:
                name, _, value = line.partition(b": ")
                found.append((name, value))
        return found

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all header lines with this name."""
        return [value for key, value in self.lines if key.lower() == name]

    async def read_head(self) -> None:
        """Read up to the end of the header lines."""
        self.head = await self.reader.readuntil(b"\r\n\r\n")

    async def read_body(self) -> None:
        """Read the body that the head announces."""
        length = self.values(b"content-length")
        if length:
            self.body = await self.reader.readexactly(int(length[0]))
        elif self.values(b"transfer-encoding"):
            while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                self.body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readuntil(b"\r\n")

    async def answer(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.writer.write(data)
        await self.writer.drain()


async def plain(visit: Visit) -> None:
    """Answer `ok` to every request."""
    await visit.read_body()
    await visit.answer(OK)


def saying(data: bytes) -> Handler:
    """Return a server with one answer."""

    async def answer(visit: Visit) -> None:
        await visit.read_body()
        await visit.answer(data)

    return answer


class PortServer:
    """A server and its record of all connections."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.visits: list[Visit] = []
        self.port = 0

    @property
    def last(self) -> Visit:
        """Return the latest connection."""
        return self.visits[-1]

    @property
    def open(self) -> int:
        """Return the number of connections that the client has not ended."""
        return sum(1 for visit in self.visits if not visit.gone.is_set())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection and wait for its end, so that the server sees a client leave."""
        visit = Visit(reader, writer)
        self.visits.append(visit)
        try:
            await visit.read_head()
            await self.handler(visit)
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
            while await reader.read(65536):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            visit.gone.set()
            writer.close()


@asynccontextmanager
async def listening(handler: Handler = plain, host: str = "127.0.0.1") -> AsyncIterator[PortServer]:
    """Run a server on a free port; its connections end with it."""
    server = PortServer(handler)
    listener = await asyncio.start_server(server.serve, host, 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for visit in server.visits:
            cut(visit.writer)
        await listener.wait_closed()


def sent_headers(answer: bytes) -> list[tuple[bytes, bytes]]:
    """Return the header lines of a raw answer."""
    head = answer.partition(b"\r\n\r\n")[0]
    return [
        (line.partition(b": ")[0].lower(), line.partition(b": ")[2])
        for line in head.split(b"\r\n")[1:]
    ]


def status_of(answer: bytes) -> int:
    """Return the status of a raw answer."""
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found, answer[:200]
    return int(found[1])
