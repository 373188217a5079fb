"""The listener for metrics: one path, and bounded connections, requests, times and work."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Unavailable
from boxd.names.address import Address
from boxd.telemetry import listener
from boxd.telemetry.listener import MAX_CLIENTS, MAX_HEAD, MetricsListener
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Served:
    """A listener, its port, and how often its text was built."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.builds = 0
        self.server = MetricsListener(Address("127.0.0.1", 0), self.build)
        self.port = 0

    async def build(self) -> bytes:
        """Return the text."""
        self.builds += 1
        return self.text

    async def ask(self, request: bytes) -> bytes:
        """Send a request; return all bytes of the answer, none if the server disconnects."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@asynccontextmanager
async def serving(text: bytes = b"boxd_boxes 1\n") -> AsyncIterator[Served]:
    """Yield a listener on loopback."""
    served = Served(text)
    served.port = (await served.server.start()).port
    try:
        yield served
    finally:
        await served.server.close()


async def test_the_text_is_served_with_its_type() -> None:
    async with serving() as served:
        answer = await served.ask(GET)
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-type: text/plain; version=0.0.4" in head
    assert body == served.text


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", b"404"),
        (b"GET /v1/boxes HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"HEAD /metrics HTTP/1.1", b"200"),
        (b"GET /metrics?name[]=boxd_boxes HTTP/1.1", b"200"),
        (b"nonsense", b"404"),
    ],
)
async def test_other_requests_are_refused(request_line: bytes, status: bytes) -> None:
    async with serving() as served:
        answer = await served.ask(request_line + b"\r\n\r\n")
    assert answer.split()[1] == status
    assert answer.endswith(b"\r\n\r\n") == request_line.startswith(b"HEAD")


async def test_a_long_request_ends_the_connection() -> None:
    async with serving() as served:
        assert not await served.ask(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 4 * MAX_HEAD)
        assert b" 200 " in await served.ask(GET)


async def test_many_scrapers_cost_as_much_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "FRESH_S", 3600.0)
    async with serving() as served:
        answers = [await served.ask(GET) for _ in range(50)]
        at_once = await asyncio.gather(*(served.ask(GET) for _ in range(MAX_CLIENTS)))
    assert served.builds == 1
    assert all(answer.endswith(served.text) for answer in [*answers, *at_once])


async def test_a_connection_above_the_limit_is_closed_and_the_limit_is_not_for_ever() -> None:
    async with serving() as served:
        silent = [
            await asyncio.open_connection("127.0.0.1", served.port) for _ in range(MAX_CLIENTS)
        ]
        await until(lambda: served.server.clients == MAX_CLIENTS)
        assert not await served.ask(GET)
        for _, writer in silent:
            writer.close()
        await until(lambda: served.server.clients == 0)
        assert b" 200 " in await served.ask(GET)


async def test_a_client_that_sends_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "READ_S", 0.05)
    async with serving() as served:
        assert not await served.ask(b"GET /metrics")


async def test_a_client_that_reads_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "WRITE_S", 0.05)
    async with serving(b"x" * (64 << 20)) as served:
        with socket.create_connection(("127.0.0.1", served.port)) as silent:
            silent.sendall(GET)
            await until(lambda: served.builds == 1)
            await until(lambda: served.server.clients == 0)


async def test_an_address_in_use_is_named() -> None:
    async with serving() as served:
        second = MetricsListener(Address("127.0.0.1", served.port), served.build)
        with pytest.raises(Unavailable, match=r"cannot serve metrics at .* --metrics-addr"):
            await second.start()


async def test_close_ends_open_connections() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        await served.ask(b"GET / HTTP/1.1\r\n\r\n")  # the first connection is accepted, too
    assert not await reader.read()
    writer.close()
