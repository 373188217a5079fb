"""A server on a real socket that answers with whatever bytes a test prescribes."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADERS_END = b"\r\n\r\n"


@dataclass
class Received:
    """One request: its first line, its headers in lower case, and its body."""

    line: str
    headers: dict[str, str]
    body: bytes


class Reply(Protocol):
    """How the server treats one connection after it has read a request."""

    def __call__(self, connection: socket.socket, end: threading.Event) -> None:
        """Send bytes. `end` is set when the test is over. The connection closes afterwards."""
        ...


@dataclass
class HostileServer:
    """The server. Connection n gets reply n; the last reply also serves all later connections."""

    replies: list[Reply]
    requests: list[Received] = field(default_factory=list)
    _listener: socket.socket = field(default_factory=socket.socket)
    _end: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def start(self) -> None:
        """Listen on a free port."""
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(16)
        self._run(self._accept)

    def stop(self) -> None:
        """Close the listener and wait for all threads."""
        self._end.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join()

    def _run(self, target: object, *arguments: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._run(self._serve, connection, self.replies[min(number, len(self.replies) - 1)])
            number += 1

    def _serve(self, connection: socket.socket, reply: Reply) -> None:
        with connection, suppress(OSError):
            connection.settimeout(20)
            request = read_request(connection)
            if request is None:
                return
            self.requests.append(request)
            reply(connection, self._end)
            connection.shutdown(socket.SHUT_WR)
            while not self._end.is_set() and connection.recv(65536):
                pass


@contextmanager
def hostile(*replies: Reply) -> Iterator[HostileServer]:
    """Run a server within the context."""
    server = HostileServer(list(replies))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def read_request(connection: socket.socket) -> Received | None:
    """Read one request with its body; None: the client closed the connection."""
    data = b""
    while HEADERS_END not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return None
        data += chunk
    head, _, body = data.partition(HEADERS_END)
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    if headers.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += connection.recv(65536)
    return Received(first, headers, body)


def says(text: bytes) -> Reply:
    """Return a reply of these bytes, after which the connection closes."""

    def reply(connection: socket.socket, end: threading.Event) -> None:
        connection.sendall(text)

    return reply


def stalls(text: bytes = b"") -> Reply:
    """Return a reply of these bytes, after which the server is silent."""

    def reply(connection: socket.socket, end: threading.Event) -> None:
        connection.sendall(text)
        end.wait(20)

    return reply


def trickles(text: bytes, forever: bytes) -> Reply:
    """Return a reply of these bytes, and then `forever`, again and again, every 20 ms."""

    def reply(connection: socket.socket, end: threading.Event) -> None:
        connection.sendall(text)
        while not end.wait(0.02):
            connection.sendall(forever)

    return reply


def resets(text: bytes) -> Reply:
    """Return a reply of these bytes, after which the connection is reset."""

    def reply(connection: socket.socket, end: threading.Event) -> None:
        connection.sendall(text)
        linger = b"\1\0\0\0\0\0\0\0"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()

    return reply


def answer(
    body: bytes, status: str = "200 OK", kind: str = "application/json", **headers: str
) -> bytes:
    """Return a correct answer."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + HEADERS_END + body


def chunked(*chunks: bytes, kind: str = "text/event-stream", complete: bool = True) -> bytes:
    """Return an answer in chunks; an incomplete one has no last chunk."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + body + (b"0\r\n\r\n" if complete else b"")
