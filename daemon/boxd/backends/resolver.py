"""The resolver of boxes whose egress is a list: it tells listed names only, and opens the fence.

A box asks at the addresses of the fence, which leads the question here; its source address is its
own, as the fence drops any other. The addresses of a listed name are put into the box's sets before
the answer is sent. A name that is not listed does not exist (NXDOMAIN: programs fail at once,
where a refusal would have them try again). Questions go to the host's own resolvers.

Nothing here outlives the daemon. What was opened stays open until its time is over; the next daemon
opens it again when it is asked.
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

from boxd.backends import answers
from boxd.backends.fence import MAX_ADDRESSES, RESOLVER_PORT
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from ipaddress import IPv4Address

    from boxd.backends.egress import Egress

UPSTREAM_TIMEOUT = 2.0
"""Seconds in which one of the host's resolvers must answer, before the next one is asked."""
AT_ONCE = 32
"""Questions of one box that are dealt with at the same time; more are dropped."""
CONNECTIONS = 8
"""TCP connections of one box at the same time."""
IDLE_TIMEOUT = 10.0
"""Seconds in which a TCP connection must ask, and take its answer."""
OPEN_AT_LEAST = 60
OPEN_LONGER = 30
"""Seconds that addresses stay open: at least, and longer than the answer may be kept."""
UNLISTED = "not in the egress list of this box"

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Box:
    """A box with a list. `opened` has the loop's time until which (address, port) is open.

    Critical section: `lock` is held while addresses are opened and while the box is forgotten, so
    that nothing is opened for the next box at the same address.
    """

    link: str
    egress: Egress
    opened: dict[tuple[IPv4Address, int | None], float] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    questions: int = 0
    connections: int = 0


class Resolver:
    """See the module. `open_` opens addresses for a link: on one port or (None) all of them, for so
    many seconds. `upstreams` tells the host's resolvers. Answers carry `mark`, without which the
    host refuses the way to a box."""

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None
        self._protocol: _Datagrams | None = None
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._backend = dns.asyncbackend.get_backend("asyncio")

    def know(self, box: IPv4Address, link: str, egress: Egress) -> None:
        """Answers a box from now on. What it is known by already stays as it is."""
        known = self._boxes.get(str(box))
        if known is None or (known.link, known.egress) != (link, egress):
            self._boxes[str(box)] = _Box(link, egress)

    async def forget(self, box: IPv4Address) -> None:
        """Answers it no more, and opens nothing for it after this returns."""
        known = self._boxes.get(str(box))
        if known is not None:
            async with known.lock:
                self._boxes.pop(str(box), None)

    def opened(self, box: IPv4Address) -> list[tuple[IPv4Address, int | None, int]]:
        """What is open to a box now: address, port (None: every one), seconds that are left."""
        known = self._boxes.get(str(box))
        now = asyncio.get_running_loop().time()
        entries = known.opened.items() if known else ()
        return [(a, port, int(until - now)) for (a, port), until in entries if until - now >= 1]

    async def listen(self, address: IPv4Address) -> None:
        """Begins to answer at an address of this host; once. Unavailable when it is taken."""
        async with self._starting:
            if self._server is not None:
                return
            try:
                await self._bind(str(address))
            except OSError as error:
                await self._unbind()
                taken = f"port {self._port} is taken; end the program that listens there"
                why = taken if error.errno == errno.EADDRINUSE else error.strerror
                raise Unavailable(
                    f"names cannot be resolved for boxes with an egress list: {why}"
                ) from error

    async def close(self) -> None:
        """Ends all that is under way. Boxes that were known are forgotten."""
        async with self._starting:
            await self._unbind()
        self._boxes.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _bind(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._transport, self._protocol = await loop.create_datagram_endpoint(
            lambda: _Datagrams(self._datagram, loop.create_future()),
            sock=self._socket(socket.SOCK_DGRAM, address),
        )
        stream = self._socket(socket.SOCK_STREAM, address)
        self._server = await asyncio.start_server(self._connection, sock=stream)

    def _socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        one = socket.socket(socket.AF_INET, kind)
        try:
            one.setblocking(False)
            if kind is socket.SOCK_STREAM:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._mark:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, self._mark)
            one.bind((address, self._port))
        except BaseException:
            one.close()
            raise
        return one

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
            self._spawn(self._by_datagram(box, wire, source))

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
        self._spawn(self._by_connection(box, reader, writer))

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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            return answers.refused(query, dns.rcode.SERVFAIL, "the resolvers of the host are out")
        answer = answers.answered(query, upstream)
        try:
            for port in ports:
                await self._opened(box, answer, port)
        except BoxdError as error:
            _log.warning("names of a box's egress list stay closed: %s", error)
            return answers.refused(query, dns.rcode.SERVFAIL, "the fence does not open")
        except _TooManyError:
            return answers.refused(query, dns.rcode.SERVFAIL, "too many addresses are open")
        return answer

    async def _ask(self, query: dns.message.Message) -> dns.message.Message | None:
        """What the first of the host's resolvers says that knows; None when none does."""
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

    async def _opened(self, box: _Box, answer: answers.Answer, port: int | None) -> None:
        """Opens the addresses of an answer, but for those that are open long enough."""
        loop = asyncio.get_running_loop()
        async with box.lock:
            if box not in self._boxes.values():
                return  # it is being removed
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
    """A box has as many open addresses as it may."""


class _Datagrams(asyncio.DatagramProtocol):
    """Protocol adapter only."""

    def __init__(
        self, received: Callable[[bytes, tuple[str, int]], None], closed: asyncio.Future[None]
    ) -> None:
        self._received = received
        self.closed = closed

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """One datagram."""
        self._received(data, addr)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        del exc
        self.closed.set_result(None)
