"""The DNS resolver of boxes with an egress list: resolves only listed names, and opens the fence.

A box sends queries to the fence's addresses, and the fence redirects them to this resolver. The
source address identifies the box, because the fence drops spoofed sources. The resolver adds the
addresses of a listed name to the box's sets before it answers. For other names it answers NXDOMAIN:
programs then fail at once, where they would retry after REFUSED. The resolver forwards queries to
the host's own resolvers.

No state outlives the daemon. Open addresses stay open until they expire; the next daemon opens them
again on a query.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dns.asyncbackend
import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode

from boxd.backends.network import answers
from boxd.backends.network.fence import MAX_ADDRESSES, RESOLVER_PORT
from boxd.errors import BoxdError, Unavailable
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from ipaddress import IPv4Address

    from boxd.backends.network.egress import Egress

UPSTREAM_TIMEOUT = 2.0
"""Seconds within which a resolver of the host must answer; then the daemon asks the next one."""
AT_ONCE = 32
"""Maximum number of concurrent queries per box. Queries beyond it are dropped."""
CONNECTIONS = 8
"""Maximum number of concurrent TCP connections per box."""
IDLE_TIMEOUT = 10.0
"""Seconds within which a TCP client must send a query, and read its answer."""
OPEN_AT_LEAST = 60
OPEN_LONGER = 30
"""Seconds that addresses stay open: the minimum, and the addition to the TTL of the answer."""
UNLISTED = "not in the egress list of this box"

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Box:
    """A box with a list. `opened` maps (address, port) to the loop's time at which it closes.

    Critical section: `lock` is held while addresses are opened and while the box is forgotten. So
    nothing is opened for the next box with the same address.
    """

    link: str
    egress: Egress
    opened: dict[tuple[IPv4Address, int | None], float] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    questions: int = 0
    connections: int = 0


class Resolver:
    """Answers the DNS queries of boxes with an egress list.

    `open_` opens addresses for a link: on one port, or on all (None), for a number of seconds.
    `upstreams` returns the host's resolvers. Answers carry the packet mark `mark`, without which
    the host does not route to a box.
    """

    def __init__(
        self,
        open_: Callable[[str, list[IPv4Address], int | None, int], Awaitable[None]],
        upstreams: Callable[[], Sequence[IPv4Address]],
        port: int = RESOLVER_PORT,
        mark: int = 0,
    ) -> None:
        self._open = open_
        self._upstreams = upstreams
        self._port = port
        self._mark = mark
        self._boxes: dict[str, _Box] = {}
        self._tasks = BackgroundTasks()
        self._transport: asyncio.DatagramTransport | None = None
        self._protocol: _Datagrams | None = None
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._backend = dns.asyncbackend.get_backend("asyncio")

    def know(self, box: IPv4Address, link: str, egress: Egress) -> None:
        """Start answering a box. An unchanged box keeps its open addresses."""
        current = self._boxes.get(str(box))
        if current is None or (current.link, current.egress) != (link, egress):
            self._boxes[str(box)] = _Box(link, egress)

    async def forget(self, box: IPv4Address) -> None:
        """Stop answering a box. After the call, the resolver opens no address for it."""
        current = self._boxes.get(str(box))
        if current is not None:
            async with current.lock:
                self._boxes.pop(str(box), None)

    def opened(self, box: IPv4Address) -> list[tuple[IPv4Address, int | None, int]]:
        """Return the open addresses of a box: address, port (None: all), and seconds left."""
        current = self._boxes.get(str(box))
        now = asyncio.get_running_loop().time()
        entries = current.opened.items() if current else ()
        return [(a, port, int(until - now)) for (a, port), until in entries if until - now >= 1]

    async def listen(self, address: IPv4Address) -> None:
        """Listen at an address of this host, once. Raises Unavailable if the port is in use."""
        async with self._starting:
            if self._server is not None:
                return
            try:
                await self._bind(str(address))
            except OSError as error:
                await self._unbind()
                reason = f"port {self._port} is in use; end the program that listens there"
                why = reason if error.errno == errno.EADDRINUSE else error.strerror
                raise Unavailable(
                    f"the resolver for boxes with an egress list cannot start: {why}"
                ) from error

    async def close(self) -> None:
        """Close all sockets, cancel all queries, and forget all boxes."""
        async with self._starting:
            await self._unbind()
        self._boxes.clear()
        await self._tasks.close()

    async def _bind(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._transport, self._protocol = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self._datagram, loop.create_future()),
            sock=self._socket(socket.SOCK_DGRAM, address),
        )
        stream = self._socket(socket.SOCK_STREAM, address)
        self._server = await asyncio.start_server(self._connection, sock=stream)

    def _socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET, kind)
        try:
            sock.setblocking(False)
            if kind is socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._mark:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, self._mark)
            sock.bind((address, self._port))
        except BaseException:
            sock.close()
            raise
        return sock

    async def _unbind(self) -> None:
        if self._transport is not None and self._protocol is not None:
            self._transport.close()
            self._transport = None
            await self._protocol.closed
        if self._server is not None:
            self._server.close()
            self._server = None

    # --- transports ---------------------------------------------------------------------------

    def _datagram(self, wire: bytes, source: tuple[str, int]) -> None:
        box = self._boxes.get(source[0])
        if box is not None and box.questions < AT_ONCE:
            box.questions += 1
            self._tasks.start(self._by_datagram(box, wire, source), name="DNS query")

    async def _by_datagram(self, box: _Box, wire: bytes, source: tuple[str, int]) -> None:
        try:
            query = answers.parse_query(wire)
            if query is None:
                return
            reply = await self._reply(box, query)
            if self._transport is not None:
                self._transport.sendto(answers.by_datagram(query, reply), source)
        finally:
            box.questions -= 1

    def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: tuple[str, int] = writer.get_extra_info("peername")
        box = self._boxes.get(peer[0])
        if box is None or box.connections >= CONNECTIONS:
            writer.transport.abort()
            return
        box.connections += 1
        self._tasks.start(self._by_connection(box, reader, writer), name="DNS connection")

    async def _by_connection(
        self, box: _Box, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT):
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    query = answers.parse_query(await reader.readexactly(size))
                if query is None:
                    return
                reply = (await self._reply(box, query)).to_wire()
                writer.write(len(reply).to_bytes(2, "big") + reply)
                async with asyncio.timeout(IDLE_TIMEOUT):
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            return
        finally:
            box.connections -= 1
            writer.transport.abort()

    # --- answers ------------------------------------------------------------------------------

    async def _reply(self, box: _Box, query: dns.message.Message) -> dns.message.Message:
        return (await self._decide(box, query)).reply

    async def _decide(self, box: _Box, query: dns.message.Message) -> answers.Answer:
        name = answers.asked_name(query)
        ports = box.egress.ports_of(name)
        if not ports:
            return answers.refused(query, dns.rcode.NXDOMAIN, UNLISTED)
        if not answers.asks_for_address(query):
            return answers.refused(query, dns.rcode.NOERROR)
        upstream = await self._ask(answers.upstream_query(query))
        if upstream is None:
            why = "the resolvers of the host do not answer"
            return answers.refused(query, dns.rcode.SERVFAIL, why)
        answer = answers.answered(query, upstream)
        try:
            for port in ports:
                await self._open_new(box, answer, port)
        except BoxdError as error:
            _log.warning("addresses of a box's egress list cannot be opened: %s", error)
            return answers.refused(query, dns.rcode.SERVFAIL, "the fence cannot be changed")
        except _TooManyError:
            return answers.refused(query, dns.rcode.SERVFAIL, "too many addresses are open")
        return answer

    async def _ask(self, query: dns.message.Message) -> dns.message.Message | None:
        """Return the first conclusive answer of the host's resolvers, or None."""
        for resolver in self._upstreams():
            with suppress(dns.exception.DNSException, OSError, EOFError):
                answer, _ = await dns.asyncquery.udp_with_fallback(
                    query,
                    str(resolver),
                    timeout=UPSTREAM_TIMEOUT,
                    ignore_unexpected=True,
                    ignore_errors=True,
                    backend=self._backend,
                )
                if answer.rcode() in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
                    return answer
        return None

    async def _open_new(self, box: _Box, answer: answers.Answer, port: int | None) -> None:
        """Open the addresses of an answer, except those that stay open long enough."""
        loop = asyncio.get_running_loop()
        async with box.lock:
            if box not in self._boxes.values():
                return  # the box is being removed
            now = loop.time()
            needed = now + answer.ttl
            new = [a for a in answer.addresses if box.opened.get((a, port), now) < needed]
            if not new:
                return
            for entry in [entry for entry, until in box.opened.items() if until < now]:
                del box.opened[entry]
            if len(box.opened.keys() | {(a, port) for a in new}) > MAX_ADDRESSES:
                raise _TooManyError
            seconds = max(answer.ttl, OPEN_AT_LEAST) + OPEN_LONGER
            await self._open(box.link, new, port, seconds)
            box.opened.update({(a, port): now + seconds for a in new})


class _TooManyError(Exception):
    """A box has reached its limit of open addresses."""


class _Datagrams(asyncio.DatagramProtocol):
    """Passes datagrams to a callback."""

    def __init__(
        self, received: Callable[[bytes, tuple[str, int]], None], closed: asyncio.Future[None]
    ) -> None:
        self._received = received
        self.closed = closed

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Pass on one datagram."""
        self._received(data, addr)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the socket is closed."""
        del exc
        self.closed.set_result(None)
