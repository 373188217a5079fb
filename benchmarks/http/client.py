"""A minimal HTTP/1.1 client: one blocking connection, which can discard bodies."""

from __future__ import annotations

import ctypes
import socket
import threading
from dataclasses import dataclass

PIECE = 1 << 20
HOST = "127.0.0.1"
PATIENCE_S = 120.0
_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its body (if kept) and the size of the body in bytes."""

    status: int
    body: bytes
    size: int


class Client:
    """A persistent connection. The client reconnects if the server has closed it."""

    def __init__(self, port: int, key: str = "", namespace: int | None = None) -> None:
        """`namespace` is a process in the network namespace of the port; None: this process."""
        self._port, self._key, self._namespace = port, key, namespace
        self._socket: socket.socket | None = None
        self._rest = b""
        self._buffer = bytearray(PIECE)

    def request(
        self, method: str, path: str, body: bytes | memoryview = b"", *lines: str, keep: bool = True
    ) -> Reply:
        """Send a request. Raises OSError, or RuntimeError for an answer without a length."""
        head = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(body)}"]
        if self._key:
            head.append(f"Authorization: Bearer {self._key}")
        place = self._connected()
        data = "\r\n".join([*head, *lines, "", ""]).encode()
        if len(body) < PIECE:
            place.sendall(data + bytes(body))
        else:
            place.sendall(data)
            place.sendall(body)
        return self._reply(place, keep=keep)

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._rest = b""

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = _socket(self._namespace)
            self._socket.settimeout(PATIENCE_S)
            self._socket.connect((HOST, self._port))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _reply(self, place: socket.socket, *, keep: bool) -> Reply:
        head = self._until(place, b"\r\n\r\n")
        first, *others = head.decode("latin-1").split("\r\n")
        lines = {
            name.lower(): value.strip() for name, _, value in (o.partition(":") for o in others)
        }
        status = int(first.split()[1])
        if lines.get("transfer-encoding", "") == "chunked":
            body = self._chunks(place)
            reply = Reply(status, body, len(body))
        elif status == 204:
            reply = Reply(status, b"", 0)
        elif "content-length" in lines:
            reply = self._sized(place, status, int(lines["content-length"]), keep=keep)
        else:
            raise RuntimeError(f"an answer without a length: {head!r}")
        if lines.get("connection", "").lower() == "close":
            self.close()
        return reply

    def _until(self, place: socket.socket, end: bytes) -> bytes:
        while end not in self._rest:
            more = place.recv(65_536)
            if not more:
                raise RuntimeError("the server has closed the connection")
            self._rest += more
        found, _, self._rest = self._rest.partition(end)
        return found

    def _sized(self, place: socket.socket, status: int, size: int, *, keep: bool) -> Reply:
        kept = [self._rest[:size]]
        left, self._rest = size - len(kept[0]), self._rest[size:]
        while left:
            count = place.recv_into(self._buffer, min(left, PIECE))
            if not count:
                raise RuntimeError(f"the answer is {left} bytes too short")
            left -= count
            if keep:
                kept.append(bytes(self._buffer[:count]))
        return Reply(status, b"".join(kept) if keep else b"", size)

    def _chunks(self, place: socket.socket) -> bytes:
        parts = []
        while size := int(self._until(place, b"\r\n"), 16):
            while len(self._rest) < size + 2:
                more = place.recv(65_536)
                if not more:
                    raise RuntimeError("the answer ends within a chunk")
                self._rest += more
            parts.append(self._rest[:size])
            self._rest = self._rest[size + 2 :]
        self._until(place, b"\r\n")
        return b"".join(parts)


def _socket(namespace: int | None) -> socket.socket:
    """Create a socket in the network namespace of a process. It stays in that namespace."""
    if namespace is None:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        # This needs a separate thread, because `setns` changes the namespace of the thread.
        try:
            with open(f"/proc/{namespace}/ns/net", "rb") as handle:
                if _libc.setns(handle.fileno(), _NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    (found,) = made
    if isinstance(found, OSError):
        raise found
    return found
