"""HTTP/1.1 for the object server. Protocol adapter only.

Optimised for large bodies: the server receives a body directly into 1 MiB buffers, never through
the parser. A thread consumes one buffer while the next one fills. Files are sent by sendfile(2).
httptools parses request heads.

`objectserver.__main__` has the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httptools

from objectserver.errors import S3Error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    T = TypeVar("T")

MAX_HEAD = 64 * 1024
"""Maximum size of the request line and headers together, in bytes."""
BUFFER = 1024 * 1024
"""Size of a receive buffer in bytes."""
MAX_BUFFERS = 192
"""Maximum number of buffers of all connections together; an upload uses two."""
THREADS = 32
"""Threads that read and write files."""
IDLE_TIMEOUT = 75.0
"""Seconds after which an idle connection is closed."""
HEAD_TIMEOUT = 15.0
"""Seconds in which a request's head must arrive."""
PROGRESS_TIMEOUT = 15.0
"""Seconds of grace before SLOWEST applies."""
SLOWEST = 64 * 1024
"""Bytes per second below which a body or an answer is aborted, after PROGRESS_TIMEOUT."""
LINGER_BYTES = 16 * 1024 * 1024
"""Bytes of a rejected request that are still read, so that the client sees the answer."""
LINGER_TIMEOUT = 5.0
"""Seconds for which a rejected request is still read."""
SWEEP = 1.0
"""Seconds between two checks of all deadlines."""
_SEPARATOR = b"\r\n\r\n"
_SINGLE = frozenset({"authorization", "content-length", "content-type", "host", "range"})


@dataclass(slots=True)
class HttpRequest:
    """The head of one request. `path` and `query` are raw; header names are in lower case.

    `length` is the Content-Length in bytes; None means that there is none.
    """

    method: str
    path: str
    query: str
    header_list: list[tuple[str, str]]
    headers: dict[str, str]
    length: int | None
    keep_alive: bool


@dataclass(slots=True)
class FileBody:
    """Part of an open file as a body: `offset` and `size` in bytes.

    The sender closes the descriptor.
    """

    descriptor: int
    offset: int
    size: int


@dataclass(slots=True)
class HttpResponse:
    """One answer. `length` is sent as Content-Length if there is no body to measure (HEAD)."""

    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | FileBody = b""
    length: int | None = None


class Buffers:
    """The receive buffers of all connections. Critical sections: none (no await in between)."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> bytearray:
        """Return a buffer of BUFFER bytes; callers queue while all are in use."""
        while not self._free and self._count >= MAX_BUFFERS:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        if self._free:
            return self._free.pop()
        self._count += 1
        return bytearray(BUFFER)

    def give(self, buffer: bytearray) -> None:
        """Return a buffer to the pool."""
        self._free.append(buffer)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break


class HttpServer:
    """All connections, their limits, and the threads that access files."""

    def __init__(
        self,
        handle: Callable[[HttpRequest, Connection], Awaitable[HttpResponse]],
        error_response: Callable[[S3Error], HttpResponse],
        *,
        max_connections: int,
    ) -> None:
        self.handle = handle
        self.error_response = error_response
        self.max_connections = max_connections
        self.connections: set[Connection] = set()
        self.buffers = Buffers()
        self.scratch = memoryview(bytearray(MAX_HEAD))
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="object")
        self._sweeper: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        self._sweeper = loop.create_task(self._sweep())
        return cast("int", self._server.sockets[0].getsockname()[1])

    async def stop(self, patience: float) -> None:
        """Stop listening, wait `patience` seconds for running requests, and close the rest."""
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.finish()
        tasks = {connection.task for connection in self.connections}
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        for connection in list(self.connections):
            connection.abort()
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, *tasks, return_exceptions=True)
        self.threads.shutdown()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking call in a thread and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, function, *arguments)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                if connection.deadline < now:
                    connection.abort()


class Connection(asyncio.BufferedProtocol):
    """One client connection. One task serves its requests in order.

    Critical section: between `pause_reading` at the end of a head and `_fill`, only the task
    accesses the received bytes; while `_fill` waits, only `buffer_updated` does.
    """

    task: asyncio.Task[None]

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._body_left = 0
        self._target: memoryview | None = None
        self._filled = 0
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._ended = False
        self._busy = False
        self._last = False
        self._expects = False
        self.deadline = self._loop.time() + HEAD_TIMEOUT

    # -- called by the event loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the task, which rejects the connection if there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._server.connections.add(self)
        self.task = self._loop.create_task(self._serve())

    def get_buffer(self, sizehint: int) -> Any:  # noqa: ANN401 - the base class says so
        """Return the buffer for the next bytes: that of the body, or the scratch area for heads."""
        if self._target is None:
            return self._server.scratch
        end = min(len(self._target), self._filled + self._body_left)
        return self._target[self._filled : end]

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes, and wake the task when the bytes that it waits for have arrived."""
        if self._target is None:
            if not self._head and not self._last:
                self.deadline = self._loop.time() + HEAD_TIMEOUT
            self._head += self._server.scratch[:nbytes]
            if len(self._head) >= MAX_HEAD:
                self._pause()
            self._wake()
            return
        self._filled += nbytes
        self._body_left -= nbytes
        if self._body_left == 0 or self._filled == len(self._target):
            self._pause()
            self._wake()

    def eof_received(self) -> bool:
        """Handle the end of the client's data. Return True to finish an answer in progress."""
        self._ended = True
        self._wake()
        return self._busy

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the task."""
        self._ended = True
        self._transport = None
        self._wake()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def pause_writing(self) -> None:
        """Block further writes, because the client reads slowly."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """Unblock writes, because the client has caught up."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- called by the server --

    def finish(self) -> None:
        """Close after the running request, or at once if there is none."""
        self._last = True
        if not self._busy:
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- called by the handler --

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking call in a thread and return its result."""
        return await self._server.run(function, *arguments)

    async def receive(self, consume: Callable[[memoryview], None]) -> None:
        """Run `consume` in a thread on each piece of the body, in order.

        One piece is consumed while the next arrives. Raises S3Error IncompleteBody, and any
        exception of `consume`.
        """
        self._continue()
        self._slow_limit(self._body_left)
        running: asyncio.Future[None] | None = None
        used: bytearray | None = None
        buffer: bytearray | None = None
        try:
            while self._body_left:
                buffer = await self._server.buffers.take()
                size = await self._fill(buffer)
                if running is not None and used is not None:
                    await running
                    self._server.buffers.give(used)
                used, buffer = buffer, None
                piece = memoryview(used)[:size]
                running = self._loop.run_in_executor(self._server.threads, consume, piece)
            if running is not None:
                await running
        finally:
            # A thread may still read the buffer when the task is cancelled or the client has
            # disconnected.
            if running is not None:
                await asyncio.gather(running, return_exceptions=True)
            for unused in (used, buffer):
                if unused is not None:
                    self._server.buffers.give(unused)
            self.deadline = float("inf")

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises S3Error EntityTooLarge, IncompleteBody."""
        if self._body_left > limit:
            raise S3Error("EntityTooLarge", f"the body is longer than {limit} bytes")
        body = bytearray()
        await self.receive(body.extend)
        return bytes(body)

    # -- the task --

    async def _serve(self) -> None:
        try:
            if len(self._server.connections) > self._server.max_connections:
                self._last = True
                await self._answer(self._server.error_response(S3Error("SlowDown")), None)
            while not self._last and await self._request():
                pass
        except (ConnectionError, TimeoutError):
            self.abort()
        finally:
            self._server.connections.discard(self)
            if self._transport is not None:
                self._transport.close()

    async def _request(self) -> bool:
        """Serve one request; return whether another may follow."""
        self.deadline = self._loop.time() + IDLE_TIMEOUT
        request: HttpRequest | None = None
        try:
            request = await self._next_head()
            if request is None:
                return False
            self._busy = True
            self.deadline = float("inf")
            response = await self._server.handle(request, self)
        except S3Error as error:
            response = self._server.error_response(error)
        unread = LINGER_BYTES if request is None else min(self._body_left, LINGER_BYTES)
        if unread or request is None or not request.keep_alive:
            self._last = True
        await self._answer(response, request)
        self._busy = False
        if unread:
            await self._linger(unread)
        return not self._last and (not self._ended or _SEPARATOR in self._head)

    async def _next_head(self) -> HttpRequest | None:
        """Return the next request, its body unread; None at the end of the connection."""
        searched = 0
        while (end := self._head.find(_SEPARATOR, searched, MAX_HEAD)) < 0:
            if len(self._head) >= MAX_HEAD:
                raise S3Error("InvalidRequest", f"the head is longer than {MAX_HEAD} bytes")
            if self._ended:
                return None
            searched = max(0, len(self._head) - len(_SEPARATOR) + 1)
            await self._wait()
        head = bytes(self._head[: end + len(_SEPARATOR)])
        del self._head[: len(head)]
        request = parse_head(head)
        self._body_left = request.length or 0
        self._expects = request.headers.get("expect", "").lower() == "100-continue"
        if self._body_left:
            self._pause()
        return request

    async def _fill(self, buffer: bytearray) -> int:
        """Fill a buffer with bytes of the body; return their number."""
        self._filled = 0
        if self._head:
            early = self._head[: min(len(self._head), self._body_left)]
            buffer[: len(early)] = early
            del self._head[: len(early)]
            self._filled = len(early)
            self._body_left -= len(early)
        if self._body_left and self._filled < len(buffer):
            self._target = memoryview(buffer)
            try:
                while self._body_left and self._filled < len(buffer):
                    if self._ended:
                        raise S3Error(
                            "IncompleteBody", "the connection ended before the body was complete"
                        )
                    await self._wait()
            finally:
                self._target = None
                self._pause()
        if not self._body_left:
            self._resume()
        return self._filled

    async def _wait(self) -> None:
        self._resume()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _linger(self, limit: int) -> None:
        """Send EOF and read on briefly: closing at once would destroy the answer in transit."""
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the client has disconnected
                self._transport.write_eof()
        self.deadline = self._loop.time() + LINGER_TIMEOUT
        while limit > len(self._head) and not self._ended:
            limit -= len(self._head)
            self._head.clear()
            await self._wait()
        self._head.clear()

    async def _answer(self, response: HttpResponse, request: HttpRequest | None) -> None:
        body = response.body
        try:
            if self._transport is None:
                raise ConnectionResetError
            size = body.size if isinstance(body, FileBody) else len(body)
            self._slow_limit(size)
            head = _head_text(response, response.length if response.length is not None else size)
            if self._last:
                head += b"Connection: close\r\n"
            if request is not None and request.method == "HEAD":
                body = b""
            if isinstance(body, FileBody):
                self._transport.write(head + b"\r\n")
                await self._send_file(body)
            else:
                self._transport.write(head + b"\r\n" + body)
            if self._writable is not None:
                await self._writable
        finally:
            if isinstance(response.body, FileBody):
                os.close(response.body.descriptor)

    async def _send_file(self, body: FileBody) -> None:
        """Send part of a file from the page cache, on a duplicate of the socket's descriptor.

        The event loop's own sendfile loses its waiter when the connection is aborted.
        """
        if self._writable is not None:
            await self._writable
        if self._transport is None:
            raise ConnectionResetError
        target = os.dup(self._transport.get_extra_info("socket").fileno())
        offset, end = body.offset, body.offset + body.size
        try:
            while offset < end:
                try:
                    count = os.sendfile(target, body.descriptor, offset, end - offset)
                except BlockingIOError:
                    await self._until_writable(target)
                    continue
                if count == 0:
                    raise ConnectionAbortedError("the file is shorter than announced")
                offset += count
        finally:
            os.close(target)

    async def _until_writable(self, descriptor: int) -> None:
        if self._transport is None:
            raise ConnectionResetError
        self._writable = self._loop.create_future()
        self._loop.add_writer(descriptor, self.resume_writing)
        try:
            await self._writable
        finally:
            self._loop.remove_writer(descriptor)
            self._writable = None

    def _slow_limit(self, size: int) -> None:
        self.deadline = self._loop.time() + PROGRESS_TIMEOUT + size / SLOWEST

    def _continue(self) -> None:
        if self._expects and self._transport is not None and self._body_left and not self._head:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._expects = False

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Head:
    """Callbacks of httptools."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[str, str]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        text = value.decode("utf-8", "surrogateescape").strip(" \t")
        self.headers.append((name.decode("ascii").lower(), text))

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(head: bytes) -> HttpRequest:
    """Parse the head of a request, including the empty line. Raises S3Error."""
    parsed = _Head()
    parser = httptools.HttpRequestParser(parsed)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        raise S3Error("InvalidRequest", "protocol upgrades are not supported") from None
    except (httptools.HttpParserError, UnicodeDecodeError):
        raise S3Error("InvalidRequest", "the request is not valid HTTP") from None
    if not parsed.complete or not parsed.url.startswith(b"/") or not parsed.url.isascii():
        raise S3Error("InvalidRequest", "the request is not valid HTTP")
    path, _, query = parsed.url.decode("ascii").partition("?")
    headers: dict[str, str] = {}
    for name, value in parsed.headers:
        if name in headers and name in _SINGLE:
            raise S3Error("InvalidRequest", f"header {name} is sent twice")
        headers[name] = value
    if "transfer-encoding" in headers:
        raise S3Error("MissingContentLength", "send Content-Length, not Transfer-Encoding")
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdigit() and len(length) < 19):
        raise S3Error("InvalidRequest", "Content-Length is not a number")
    return HttpRequest(
        parser.get_method().decode("ascii"),
        path,
        query,
        parsed.headers,
        headers,
        None if length is None else int(length),
        parser.should_keep_alive(),
    )


def _head_text(response: HttpResponse, length: int) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines.append(f"Date: {formatdate(usegmt=True)}")
    if response.status not in (204, 304):
        lines.append(f"Content-Length: {length}")
    lines += [f"{name}: {value}" for name, value in response.headers]
    return ("\r\n".join(lines) + "\r\n").encode("utf-8", "surrogateescape")
