"""The agent's end of the control channel."""

from __future__ import annotations

import asyncio
import json

import pytest

from box_guest import protocol
from box_guest.control.link import DaemonLink
from box_guest.errors import RequestFailed, TunnelDown


class Wire:
    """Where a link sends to."""

    def __init__(self, link: DaemonLink) -> None:
        self.link = link
        self.sent: list[dict[str, object]] = []
        self.attached = link.attach(lambda data: self.sent.append(json.loads(data)))

    def answer(self, **fields: object) -> None:
        """The daemon's reply."""
        self.link.receive(protocol.encode({"type": "reply", **fields}))


async def test_hello_comes_first_and_counts_tunnels() -> None:
    link = DaemonLink({"boot": "b"})
    assert not link.up
    first = Wire(link)
    assert first.sent == [{"type": "hello", "boot": "b", "generation": 1}]
    link.detach()
    second = Wire(link)
    assert second.sent[0]["generation"] == 2
    assert link.up


async def test_one_control_channel_at_a_time() -> None:
    link = DaemonLink({})
    assert Wire(link).attached
    assert not Wire(link).attached


async def test_requests_find_their_answers() -> None:
    link = DaemonLink({})
    wire = Wire(link)
    asking = [asyncio.create_task(link.request("workspace", verb=verb)) for verb in "ab"]
    await asyncio.sleep(0)
    numbers = [message["id"] for message in wire.sent[1:]]
    wire.answer(id=numbers[1], ok=True, result={"for": "b"})
    wire.answer(id=numbers[0], ok=True, result={"for": "a"})
    assert await asyncio.gather(*asking) == [{"for": "a"}, {"for": "b"}]


async def test_refusals_carry_their_text() -> None:
    link = DaemonLink({})
    wire = Wire(link)
    asking = asyncio.create_task(link.request("workspace", verb="mount"))
    await asyncio.sleep(0)
    wire.answer(id=wire.sent[1]["id"], ok=False, error="drives are not enabled")
    with pytest.raises(RequestFailed, match="drives are not enabled"):
        await asking


async def test_requests_fail_with_the_tunnel() -> None:
    link = DaemonLink({})
    with pytest.raises(TunnelDown):
        await link.request("workspace")
    Wire(link)
    asking = asyncio.create_task(link.request("workspace"))
    await asyncio.sleep(0)
    link.detach()
    with pytest.raises(TunnelDown):
        await asking
    with pytest.raises(TunnelDown):
        await link.request("workspace")


async def test_lines_may_come_in_pieces() -> None:
    link = DaemonLink({})
    wire = Wire(link)
    asking = asyncio.create_task(link.request("workspace"))
    await asyncio.sleep(0)
    line = protocol.encode({"type": "reply", "id": wire.sent[1]["id"], "ok": True, "result": {}})
    for number in range(len(line)):
        link.receive(line[number : number + 1])
    assert await asking == {}


async def test_a_new_tunnel_starts_at_a_new_line() -> None:
    link = DaemonLink({})
    Wire(link)
    link.receive(b'{"type": "half')
    link.detach()
    Wire(link).link.receive(b'{"type": "resumed"}\n')


@pytest.mark.parametrize(
    "data",
    [b"x\n", b"{}\n", b"[]\n", b"\n", b'{"type": "reply"}\n', b"y" * (protocol.MAX_LINE + 1)],
)
async def test_nonsense_is_raised(data: bytes) -> None:
    link = DaemonLink({})
    Wire(link)
    with pytest.raises(protocol.ProtocolError):
        link.receive(data)


async def test_unknown_and_late_messages_are_ignored() -> None:
    link = DaemonLink({})
    wire = Wire(link)
    link.receive(b'{"type": "of_tomorrow"}\n')
    wire.answer(id=12345, ok=True)
    assert link.up
