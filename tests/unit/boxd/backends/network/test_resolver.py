"""The resolver of boxes with a list, asked over loopback by boxes that are loopback addresses."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode
import pytest
import pytest_asyncio

from boxd.backends.network import resolver as resolvers
from boxd.backends.network.egress import parse_egress
from boxd.backends.network.resolver import Resolver
from boxd.errors import Unavailable
from tests.harness.network.nameserver import NameServer, serving
from tests.harness.wait import DEADLINE, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plugins.strict_logs import AssertLogs

BOX, OTHER = IPv4Address("127.0.7.2"), IPv4Address("127.0.7.6")
OWN = IPv4Address("127.0.7.254")
UPSTREAM = IPv4Address("127.0.7.53")
ZONE = {"a.test": ["9.9.9.9"], "b.test": ["1.1.1.1"], "in.wild.test": ["8.8.8.8"]}
QUICK = 2.0
"""Seconds for an answer that is not to come."""


class Setting:
    """A resolver, the host's resolver behind it, and what it opened."""

    def __init__(self, names: NameServer) -> None:
        self.names = names
        self.opened: list[tuple[str, str, int | None]] = []
        self.failure: Exception | None = None
        self.upstreams: tuple[IPv4Address, ...] = (UPSTREAM,)
        self.port = _free_port()
        self.resolver = Resolver(self._open, lambda: self.upstreams, self.port)

    async def _open(
        self, link: str, addresses: list[IPv4Address], port: int | None, seconds: int
    ) -> None:
        assert seconds >= resolvers.OPEN_AT_LEAST
        if self.failure is not None:
            raise self.failure
        self.opened += [(link, str(address), port) for address in addresses]

    async def ask(
        self,
        name: str,
        kind: str = "A",
        *,
        box: IPv4Address = BOX,
        tcp: bool = False,
        patience: float = DEADLINE,
    ) -> dns.message.Message:
        """One question of a box."""
        ask = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
        query = dns.message.make_query(name, kind)
        return await ask(query, str(OWN), patience, self.port, source=str(box))

    async def code(self, name: str, kind: str = "A", *, box: IPv4Address = BOX) -> str:
        """The word of the answer to one question."""
        return dns.rcode.to_text((await self.ask(name, kind, box=box)).rcode())


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((str(OWN), 0))
        port: int = one.getsockname()[1]
        return port


@pytest_asyncio.fixture
async def setting() -> AsyncIterator[Setting]:
    """A resolver that knows BOX with a list."""
    with serving(NameServer(dict(ZONE))) as names:
        names.listen(str(UPSTREAM))
        one = Setting(names)
        one.resolver.know(BOX, "bx-1", parse_egress("a.test,*.wild.test:443"))
        await one.resolver.listen(OWN)
        yield one
        await one.resolver.close()


async def test_a_listed_name_is_opened_before_it_is_told(setting: Setting) -> None:
    answer = await setting.ask("a.test.")
    assert [str(record) for record in answer.answer[0]] == ["9.9.9.9"]
    assert setting.opened == [("bx-1", "9.9.9.9", None)]
    await setting.ask("In.Wild.test.")
    assert setting.opened[1:] == [("bx-1", "8.8.8.8", 443)]


async def test_another_name_does_not_exist(setting: Setting) -> None:
    assert await setting.code("b.test.") == "NXDOMAIN"
    assert await setting.code("wild.test.") == "NXDOMAIN"
    assert (setting.names.asked, setting.opened) == ([], [])


async def test_a_listed_name_that_is_not_there(setting: Setting) -> None:
    assert await setting.code("gone.wild.test.") == "NXDOMAIN"
    assert setting.opened == []


async def test_other_types_are_empty(setting: Setting) -> None:
    for kind in ("AAAA", "HTTPS", "TXT", "ANY"):
        answer = await setting.ask("a.test.", kind)
        assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])
    assert (setting.names.asked, setting.opened) == ([], [])


async def test_what_is_open_long_enough_is_not_opened_again(setting: Setting) -> None:
    setting.names.ttl = 5
    for _ in range(3):
        await setting.ask("a.test.")
    assert len(setting.opened) == 1
    setting.names.ttl = 1000
    await setting.ask("a.test.")
    assert len(setting.opened) == 2, "the answer may be kept for longer than it was open"


async def test_over_tcp(setting: Setting) -> None:
    answer = await setting.ask("a.test.", tcp=True)
    assert [str(record) for record in answer.answer[0]] == ["9.9.9.9"]
    reader, writer = await asyncio.open_connection(str(OWN), setting.port, local_addr=(str(BOX), 0))
    writer.write(b"\x00\x05junk!")
    assert await reader.read() == b"", "what is no question ends the connection"
    writer.close()
    await writer.wait_closed()


async def test_only_known_boxes_are_answered(setting: Setting) -> None:
    with pytest.raises(dns.exception.Timeout):
        await setting.ask("a.test.", box=OTHER, patience=QUICK)
    with pytest.raises((EOFError, ConnectionError)):
        await setting.ask("a.test.", box=OTHER, tcp=True)
    await setting.resolver.forget(BOX)
    with pytest.raises(dns.exception.Timeout):
        await setting.ask("a.test.", patience=QUICK)
    assert setting.names.asked == []


async def test_the_next_resolver_is_asked_when_one_is_out(setting: Setting) -> None:
    setting.upstreams = (IPv4Address("127.0.7.99"), UPSTREAM)
    assert await setting.code("a.test.") == "NOERROR"
    setting.upstreams = ()
    assert await setting.code("a.test.") == "SERVFAIL"


async def test_a_fence_that_does_not_open_is_told(
    setting: Setting, assert_logs: AssertLogs
) -> None:
    setting.failure = Unavailable("nft is gone")
    with assert_logs(r"cannot be opened: nft is gone"):
        assert await setting.code("a.test.") == "SERVFAIL"
    setting.failure = None
    assert await setting.code("a.test.") == "NOERROR"


async def test_a_box_opens_so_many_addresses_and_no_more(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolvers, "MAX_ADDRESSES", 2)
    setting.names.zone |= {f"{n}.wild.test": [f"9.9.9.{n}"] for n in range(3)}
    assert [await setting.code(f"{n}.wild.test.") for n in range(3)] == [
        "NOERROR",
        "NOERROR",
        "SERVFAIL",
    ]
    assert len(setting.opened) == 2
    assert await setting.code("0.wild.test.") == "NOERROR", "what is open stays"


async def test_a_flood_of_questions_is_dropped(setting: Setting) -> None:
    """While as many as allowed wait for the host's resolvers, one more gets no answer."""
    waiting = asyncio.Event()

    async def stuck(*_: object) -> None:
        await waiting.wait()

    resolver = Resolver(stuck, lambda: (UPSTREAM,), setting.port)
    with pytest.raises(Unavailable, match="is in use; end the program"):
        await resolver.listen(OWN)
    setting.port = _free_port()
    resolver = Resolver(stuck, lambda: (UPSTREAM,), setting.port)
    resolver.know(BOX, "bx-1", parse_egress("a.test"))
    await resolver.listen(OWN)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind((str(BOX), 0))
            wire = dns.message.make_query("a.test.", "A").to_wire()
            for _ in range(2 * resolvers.AT_ONCE):
                one.sendto(wire, (str(OWN), setting.port))
        await until(lambda: len(setting.names.asked) == resolvers.AT_ONCE)
        with pytest.raises(dns.exception.Timeout):
            await setting.ask("a.test.", patience=QUICK)
        assert len(setting.names.asked) == resolvers.AT_ONCE
    finally:
        await resolver.close()
