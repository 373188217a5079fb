"""Answers of programs in boxes, however their bytes arrive."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.errors import BadAnswer
from boxd.http.proxy.upstream import Upstream
from tests.harness.http.upstream import Scripted

BIG = b"x" * (256 * 1024)


async def answer_of(
    pieces: list[bytes], *, cut: bool = False, method: str = "GET"
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, lines and body."""
    upstream = Upstream(Scripted(pieces, cut=cut), 80)
    await upstream.request(method, b"/", [(b"host", b"h")], None)
    await upstream.end()
    head = await upstream.head()
    return head.status, head.lines, b"".join([bytes(data) async for data in upstream.read()])


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


@given(st.lists(st.integers(min_value=0), max_size=9), st.booleans())
def test_where_an_answer_is_split_changes_nothing(places: list[int], counted: bool) -> None:
    framing = b"Content-Length: 6" if counted else b"Transfer-Encoding: chunked"
    body = b"abcdef" if counted else b"2\r\nab\r\n4;x=y\r\ncdef\r\n0\r\nT: 1\r\n\r\n"
    data = b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 201 Made\r\nX: 1\r\n" + framing + b"\r\n\r\n" + body
    status, lines, found = asyncio.run(answer_of(cut_at(data, places)))
    assert (status, found) == (201, b"abcdef")
    assert lines == [(b"x", b"1")] + ([(b"content-length", b"6")] if counted else [])


async def test_a_body_that_comes_with_the_end_of_its_head_is_no_part_of_it() -> None:
    length = b"Content-Length: %d\r\n\r\n" % (2 * len(BIG))
    pieces = [b"HTTP/1.1 200 OK\r\n", length + BIG, BIG]
    assert await answer_of(pieces) == (
        200,
        [(b"content-length", b"%d" % (2 * len(BIG)))],
        BIG + BIG,
    )


@pytest.mark.parametrize("framing", [b"Content-Length: 9", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("cut", [True, False])
async def test_an_answer_that_ends_too_early(framing: bytes, cut: bool) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n", b"5\r\nabc"]
    with pytest.raises(BadAnswer, match="port 80 of the box ended its response too early"):
        await answer_of(pieces, cut=cut)


async def test_an_answer_to_the_end_of_the_connection_must_not_be_cut() -> None:
    pieces = [b"HTTP/1.0 200 OK\r\n\r\nabc"]
    assert await answer_of(pieces) == (200, [], b"abc")
    with pytest.raises(BadAnswer, match="too early"):
        await answer_of(pieces, cut=True)


async def test_interim_answers_without_end_are_no_answer() -> None:
    with pytest.raises(BadAnswer, match="does not answer as an HTTP"):
        await answer_of([b"HTTP/1.1 102 Wait\r\n\r\n" * 100] * 1000)


async def test_chunks_of_a_byte_each_let_others_have_their_turn() -> None:
    turns, chunks = 0, 10_000

    async def somebody() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(somebody())
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await answer_of([head + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"])
    other.cancel()
    assert answer == (200, [], b"x" * chunks)
    assert turns > chunks // 100


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304)])
async def test_a_length_without_a_body(method: str, status: int) -> None:
    head = b"HTTP/1.1 %d X\r\nContent-Length: 9\r\n\r\n" % status
    assert await answer_of([head], method=method) == (status, [(b"content-length", b"9")], b"")
