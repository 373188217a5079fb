"""Proxies between two parts that simulate failures, of connections and of S3 requests.

`FaultProxy` handles bytes only: latency with jitter, bandwidth, slices, a data limit, black hole,
reset, refusal. `StoreProxy` also parses HTTP. It answers requests itself, cuts answers or changes
them. Both run in their own thread, so that tests of real processes may block. Faults can change at
any time.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    Rule: TypeAlias = "Callable[[Request], Fault | None]"

PIECE = 1 << 16
"""Bytes forwarded at once."""
RST = struct.pack("ii", 1, 0)
"""SO_LINGER value that turns a close into a reset."""


@dataclass(frozen=True, slots=True)
class Toxic:
    """The faults of connections; the defaults are a good network."""

    latency: float = 0.0  # seconds of delay of each piece, in each direction
    jitter: float = 0.0  # additional random seconds
    bandwidth: float = 0.0  # bytes per second and direction; 0: unlimited
    slices: int = 0  # bytes of the longest piece; 0: unlimited
    limit: int = 0  # bytes of one direction after which the connection is reset; 0: unlimited
    black_hole: bool = False  # bytes vanish, connections stay open
    refuse: bool = False  # new connections are closed at once
    slow_close: float = 0.0  # seconds between an end and its forwarding


class FaultProxy:
    """Forwards a Unix or TCP address to another one.

    `listen` and `upstream` are socket paths or (host, port). The proxy replaces port 0 with its
    real port.
    """

    def __init__(
        self, listen: Path | tuple[str, int], upstream: Path | tuple[str, int], seed: int = 0
    ) -> None:
        self.listen = listen
        self.upstream = upstream
        self.toxic = Toxic()
        """The present faults; assign another object at any time."""
        self.connections = 0
        self._random = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.up()

    def up(self) -> None:
        """Listen."""
        self._call(self._listen())

    def down(self) -> None:
        """Stop listening and reset open connections, as if the machine was off."""
        self._call(self._down())

    def reset(self) -> None:
        """Reset open connections."""
        self._call(self._reset())

    def close(self) -> None:
        """End the proxy and its thread."""
        self._call(self._down())
        self._call(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its start to its end."""
        upstream = await self._connect()
        if upstream is None:
            return
        self._open.add(upstream[1])
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, upstream[1], (writer, upstream[1])))
                group.create_task(self._forward(upstream[0], writer, (writer, upstream[1])))
        finally:
            self._drop(upstream[1])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to the upstream."""
        if isinstance(self.upstream, tuple):
            return await asyncio.open_connection(*self.upstream)
        return await asyncio.open_unix_connection(self.upstream)

    async def pace(self, size: int) -> None:
        """Wait as the toxic requires for a piece of `size` bytes."""
        toxic = self.toxic
        pause = toxic.latency + self._random.uniform(0, toxic.jitter)
        if toxic.bandwidth:
            pause += size / toxic.bandwidth
        if pause:
            await asyncio.sleep(pause)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            return await self.connect()
        except OSError:
            return None

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, ...],
    ) -> None:
        passed = 0
        with suppress(OSError):
            while data := await reader.read(self.toxic.slices or PIECE):
                await self.pace(len(data))
                if self.toxic.black_hole:
                    self._dead.update(ends)
                if self._dead.intersection(ends):
                    continue
                passed += len(data)
                if self.toxic.limit and passed > self.toxic.limit:
                    for end in ends:
                        _abort(end)
                    return
                writer.write(data)
                await writer.drain()
        if self.toxic.slow_close:
            await asyncio.sleep(self.toxic.slow_close)
        with suppress(OSError):
            if not self._dead.intersection(ends):
                writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            if self.toxic.refuse:
                return
            if self.toxic.black_hole:
                self._dead.add(writer)
                while await reader.read(PIECE):
                    pass
                return
            await self.serve(reader, writer)
        except* (OSError, asyncio.IncompleteReadError):
            pass  # Tests observe the end of a connection from outside.
        finally:
            self._drop(writer)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._dead.discard(writer)
        writer.transport.abort()

    async def _listen(self) -> None:
        if isinstance(self.listen, tuple):
            self._server = await asyncio.start_server(self._accept, *self.listen)
            self.listen = self._server.sockets[0].getsockname()[:2]
        else:
            self._server = await asyncio.start_unix_server(self._accept, self.listen)

    async def _down(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            if not isinstance(self.listen, tuple):
                self.listen.unlink(missing_ok=True)
        await self._reset()

    async def _reset(self) -> None:
        for writer in list(self._open):
            _abort(writer)

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _call(self, step: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(30)


def _abort(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    if found is not None and found.family != socket.AF_UNIX:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
    writer.transport.abort()


@dataclass(slots=True)
class Request:
    """A request of the client. `number` counts the requests of the proxy, from 0."""

    method: str
    path: str
    number: int
    head: bytes = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one request: an answer by the proxy, or a change of the server's answer."""

    status: int = 0  # the proxy answers instead of the server; 0: the server answers
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    unheard: bool = False  # the server gets the request, and the client no answer
    torn: int = -1  # bytes of the answer's body before the connection ends; -1: all
    changed: bool = False  # one byte of the answer's body is different
    renamed: tuple[bytes, bytes] | None = None  # (old, new) in the answer's head


class StoreProxy(FaultProxy):
    """A proxy in front of an object server: `rule` decides about each request."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self.rule: Rule = lambda _: None
        """Returns the fault of each request; assign another function at any time."""
        self.requests: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), (host, int(port)))
        assert isinstance(self.listen, tuple)
        self.endpoint = f"http://127.0.0.1:{self.listen[1]}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection in sequence."""
        server_reader, server = await self.connect()
        self._open.add(server)
        try:
            while head := await _head(reader):
                request = await self._request(head, reader)
                if self.toxic.black_hole:
                    self._dead.add(writer)
                if writer in self._dead:
                    continue
                await self.pace(len(request.body))
                if not await self._answer(request, (server_reader, server), writer):
                    return
        finally:
            self._drop(server)

    async def _request(self, head: bytes, reader: asyncio.StreamReader) -> Request:
        method, path, _ = head.decode("latin-1").split(" ", 2)
        body = await reader.readexactly(_length(head))
        self.requests.append((method, path))
        return Request(method, path, len(self.requests) - 1, head, body)

    async def _answer(
        self,
        request: Request,
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Forward one answer; return whether the connection continues."""
        fault = self.rule(request) or Fault()
        if fault.status:
            lines = [f"HTTP/1.1 {fault.status} Fault", f"Content-Length: {len(fault.body)}"]
            lines += [f"{name}: {value}" for name, value in fault.headers]
            writer.write("\r\n".join([*lines, "", ""]).encode() + fault.body)
            await writer.drain()
            return True
        server[1].write(request.head + request.body)
        await server[1].drain()
        head = await _head(server[0])
        if not head:
            return False
        bodiless = request.method == "HEAD" or b" 204 " in head[:20]
        body = b"" if bodiless else await server[0].readexactly(_length(head))
        if self.toxic.black_hole:
            self._dead.add(writer)
            return True
        if fault.unheard:
            _abort(writer)
            return False
        if fault.changed and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        if fault.renamed is not None:
            head = head.replace(*fault.renamed)
        await self.pace(len(body))
        writer.write(head + (body if fault.torn < 0 else body[: fault.torn]))
        await writer.drain()
        return fault.torn < 0 or fault.torn >= len(body)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return a head with its empty line; b"" at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        return b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
