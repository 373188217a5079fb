"""Request bodies read piece by piece, and event streams written."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import pytest

from boxd.http.requests import sse
from boxd.http.requests.body import Body, ClientGone
from boxd.http.requests.errors import Refusal
from boxd.http.requests.sse import EventStream

if TYPE_CHECKING:
    from starlette.types import Message, Receive


def received(*pieces: bytes, whole: bool = True) -> Receive:
    """What a server gives for a body that came in pieces, and then ended or broke off."""
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    messages.append({"type": "http.request"} if whole else {"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    return receive


async def test_pieces_then_the_end_again_and_again() -> None:
    body = Body(received(b"a", b"", b"bc"))
    assert [await body.next() for _ in range(4)] == [b"a", b"bc", None, None]


async def test_a_body_that_breaks_off() -> None:
    body = Body(received(b"a", whole=False))
    assert await body.next() == b"a"
    with pytest.raises(ClientGone):
        await body.next()


@pytest.mark.parametrize(
    ("pieces", "line", "rest"),
    [
        ((b"head\nrest",), b"head", [b"rest"]),
        ((b"he", b"ad\n", b"rest"), b"head", [b"rest"]),
        ((b"head\n",), b"head", []),
        ((b"head",), b"head", []),
        ((b"\nrest\n",), b"", [b"rest\n"]),
        ((), b"", []),
        ((b"1234567890\n",), b"1234567890", []),
        ((b"12345678901\n",), None, None),
        ((b"123456", b"789012"), None, None),
    ],
)
async def test_first_line(
    pieces: tuple[bytes, ...], line: bytes | None, rest: list[bytes] | None
) -> None:
    body = Body(received(*pieces))
    assert await body.line(10) == line
    if rest is not None:
        assert [await body.next() for _ in rest] == rest
        assert await body.next() is None


async def test_whole_body_within_a_limit() -> None:
    assert await Body(received(b"12345", b"67890")).whole(10) == b"1234567890"
    assert await Body(received(b"12345", b"678901")).whole(10) is None


async def test_events_are_cut_at_64_kib_and_sent_whole() -> None:
    sent: list[bytes] = []
    state = {"busy": False}

    async def send(message: Message) -> None:
        assert not state["busy"]
        state["busy"] = True
        await asyncio.sleep(0)
        sent.append(message.get("body", b""))
        state["busy"] = False

    events = EventStream(send)
    await events.start()
    data = bytes(range(256)) * 600
    await asyncio.gather(events.chunk("stdout", data), events.chunk("stderr", b"e"))
    await events.finish(b"exit", b"{}")
    found = {b"stdout": b"", b"stderr": b""}
    for block in sent[1:-1]:
        name, coded = block.removeprefix(b"event: ").removesuffix(b"\n\n").split(b"\ndata: ")
        raw = base64.b64decode(coded, validate=True)
        assert len(raw) <= 65536
        found[name] += raw
    assert found == {b"stdout": data, b"stderr": b"e"}
    assert sent[-1] == b"event: exit\ndata: {}\n\n"


async def test_only_a_stream_that_is_under_way_has_last_words() -> None:
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    events = EventStream(send)
    await events.last_words("not begun")
    await events.start()
    await events.last_words("the key was revoked")
    await events.finish(b"exit", b"{}")
    await events.last_words("over")
    words = base64.b64encode(b"boxd: the key was revoked\n")
    assert sent == [
        *(b"", b"event: stderr\ndata: " + words + b"\n\n", b"event: exit\ndata: {}\n\n")
    ]


async def test_last_words_wait_for_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LAST_WORDS_S", 0.01)
    never = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await never.wait()

    events = EventStream(send)
    await events.start()
    await events.last_words("nobody reads this")


async def test_a_client_that_sends_nothing_for_too_long_is_refused() -> None:
    never = asyncio.Event()

    async def receive() -> Message:
        await never.wait()
        raise AssertionError("nobody sends")

    with pytest.raises(Refusal, match=r"body paused for 0\.01 s"):
        await Body(receive, idle=0.01).next()
