"""A name server for tests: answers from a zone over UDP and TCP, and records the questions.

It is the host's resolver in tests of egress lists. The daemon asks it; boxes never do.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_TTL = 300
MANY = 20
"""An answer with more addresses does not fit in a datagram, so the client asks again over TCP."""


class NameServer:
    """`zone` maps a name to its addresses, or to `=other` for an alias."""

    def __init__(self, zone: dict[str, list[str]]) -> None:
        self.zone = zone
        self.ttl = DEFAULT_TTL
        self.asked: list[str] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def listen(self, address: str, port: int = 53) -> None:
        """Serve from now on, in the network namespace of the calling thread."""
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind((address, port))
        streams = socket.create_server((address, port))
        self._sockets = [datagrams, streams]
        for work in (self._by_datagram, self._by_stream):
            thread = threading.Thread(target=work, args=(self._sockets[len(self._threads)],))
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """End both threads."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _by_datagram(self, one: socket.socket) -> None:
        while True:
            wire, peer = one.recvfrom(4096)
            if not wire:
                return
            reply = self._answer(wire)
            if len(reply.answer) and len(reply.answer[-1]) >= MANY:
                reply.answer.clear()
                reply.flags |= dns.flags.TC
            one.sendto(reply.to_wire(), peer)

    def _by_stream(self, one: socket.socket) -> None:
        while True:
            try:
                connection, _ = one.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                wire = file.read(int.from_bytes(file.read(2), "big"))
                reply = self._answer(wire).to_wire()
                file.write(len(reply).to_bytes(2, "big") + reply)

    def _answer(self, wire: bytes) -> dns.message.Message:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        self.asked.append(name)
        reply = dns.message.make_response(query, recursion_available=True)
        if name not in self.zone:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        while self.zone.get(name, ["="])[0].startswith("=") and name in self.zone:
            target = self.zone[name][0].removeprefix("=")
            alias = dns.rrset.from_text(f"{name}.", self.ttl, "IN", "CNAME", f"{target}.")
            reply.answer.append(alias)
            name = target
        if question.rdtype == dns.rdatatype.A and name in self.zone:
            found = dns.rrset.from_text_list(f"{name}.", self.ttl, "IN", "A", self.zone[name])
            reply.answer.append(found)
        return reply


@contextmanager
def serving(server: NameServer) -> Iterator[NameServer]:
    """Yield the server; close it at the end."""
    try:
        yield server
    finally:
        server.close()
