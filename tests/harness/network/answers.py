"""A server that answers every message over TCP and UDP, and records the senders."""

from __future__ import annotations

import selectors
import socket
import threading

GREETING = b"you got through"


class Answers:
    """One thread for any number of listening sockets; the caller must close it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        """(local address, sender) of every connection and datagram."""
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._sockets: list[socket.socket] = [self._wake, self._woken]
        self._thread: threading.Thread | None = None

    def listen(self, address: str, *ports: int) -> None:
        """Add sockets, in the network namespace of the calling thread."""
        for port in ports:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
                self._sockets.append(one)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((address, port))
                one.setblocking(False)
                if kind == socket.SOCK_STREAM:
                    one.listen()
                self._selector.register(one, selectors.EVENT_READ)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._wake.send(b"x")

    def close(self) -> None:
        """End the thread and close all sockets."""
        if self._thread is not None:
            self._wake.send(b"q")
            self._thread.join()
        for one in self._sockets:
            one.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._woken:
                    if b"q" in one.recv(64):
                        return
                    continue
                try:
                    self._answer(one)
                except OSError:
                    continue  # The peer has already closed the connection.

    def _answer(self, one: socket.socket) -> None:
        here = one.getsockname()[0]
        if one.type == socket.SOCK_DGRAM:
            _, peer = one.recvfrom(2048)
            self.heard.append((here, peer[0]))
            one.sendto(GREETING, peer)
            return
        connection, peer = one.accept()
        with connection:
            self.heard.append((here, peer[0]))
            connection.sendall(GREETING)
