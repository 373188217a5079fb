"""Heads of any length, however their bytes arrive: what they cost the service and its log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from typing import TYPE_CHECKING

import pytest

from boxd import log
from boxd.http.middleware.guard import LOGGED_METHOD
from boxd.http.requests.headers import MAX_HEADER_BYTES, MAX_HEADER_LINES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.http.web import Web

LENGTH = 100_000
END = b" /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LONG_HEADS = {
    "method": b"A" * LENGTH + END,
    "target": b"GET /" + b"a://" * (LENGTH // 4) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "header name": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a" * LENGTH + b": b\r\n\r\n",
    "header value": b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"x://y:" * (LENGTH // 6) + b"\r\n\r\n",
    "header lines": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 16_000 + b"\r\n",
    "method without an end": b"A" * LENGTH,
}


class Masked:
    """Counts the characters that the service masks."""

    def __init__(self, mask: Callable[..., str]) -> None:
        self._mask = mask
        self.longest = 0
        self.total = 0

    def __call__(self, text: str, *, is_cut: bool) -> str:
        """In place of what masks."""
        self.longest = max(self.longest, len(text))
        self.total += len(text)
        return self._mask(text, is_cut=is_cut)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log as a service writes it, debug lines too."""
    root = logging.getLogger()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.LineFormatter())
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> Masked:
    """What the service masks from here on."""
    counter = Masked(log._masked)
    monkeypatch.setattr(log, "_masked", counter)
    return counter


async def answered(web: Web, sent: bytes, piece: int) -> tuple[int, str]:
    """Status and error text for a head that is sent in pieces of so many bytes."""
    reader, writer = await web.connect()
    try:
        for begin in range(0, len(sent), piece):
            writer.write(sent[begin : begin + piece])
            await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        answer = await asyncio.wait_for(reader.read(), 20)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.split(b" ")[1]), json.loads(body)["error"]


@pytest.mark.parametrize("piece", [LENGTH * 2, 2048], ids=["at once", "dripped"])
@pytest.mark.parametrize("case", LONG_HEADS)
async def test_a_long_head_without_a_key_costs_next_to_nothing(
    web: Web, lines: io.StringIO, masked: Masked, case: str, piece: int
) -> None:
    asking = asyncio.create_task(answered(web, LONG_HEADS[case], piece))
    others = [await web.client().get("/healthz") for _ in range(5)]
    status, text = await asking
    assert [other.status_code for other in others] == [200] * 5
    assert status == 431
    assert str(MAX_HEADER_BYTES) in text or str(MAX_HEADER_LINES) in text
    assert masked.longest <= log.MAX_MESSAGE
    assert masked.total < LENGTH / 2
    assert max(map(len, lines.getvalue().splitlines())) < log.MAX_MESSAGE + 100
    assert re.search("[Aa]{100}|(a://){10}", lines.getvalue()) is None


async def test_a_long_method_within_the_bound_is_cut_in_the_log(
    web: Web, lines: io.StringIO, masked: Masked
) -> None:
    reader, writer = await web.connect()
    writer.write(b"M" * 60_000 + END)
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)).startswith(b"HTTP/1.1 40")
    assert (await web.client().get("/healthz")).status_code == 200
    assert max(len(run) for run in re.findall("M+", lines.getvalue())) == LOGGED_METHOD
    assert masked.longest <= log.MAX_MESSAGE


@pytest.mark.parametrize("piece", [LENGTH * 2, 1000], ids=["at once", "dripped"])
@pytest.mark.parametrize("size", [MAX_HEADER_BYTES - 400, MAX_HEADER_BYTES])
async def test_the_bound_is_the_same_however_a_head_arrives(
    web: Web, size: int, piece: int
) -> None:
    begin = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: "
    sent = begin + b"y" * (size - len(begin)) + b"\r\n\r\n"
    reader, writer = await web.connect()
    for offset in range(0, len(sent), piece):
        writer.write(sent[offset : offset + piece])
        await writer.drain()
    status = await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)
    assert int(status.split(b" ")[1]) == (200 if size < MAX_HEADER_BYTES else 431)
