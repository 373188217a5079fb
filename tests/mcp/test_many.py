"""Many clients at once, and one that does not read."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from boxd.mcp.messages import outbox
from tests.harness.http.mcp import INITIALIZE, Talk, talk
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from websockets.asyncio.client import ClientConnection

    from tests.harness.http.web import Web

SESSIONS = 100


@pytest.mark.timeout(180)
async def test_a_hundred_sessions_call_and_are_told(web: Web) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(talk(web)) for _ in range(SESSIONS)]
        await clients[0].call("box_spawn", spec="dev")
        fleet = {"uri": "svc://fleet"}
        await asyncio.gather(*(one.result("resources/subscribe", fleet) for one in clients))
        done = await asyncio.gather(
            *(
                one.call("box_exec", box="dev", cmd=f"echo {number}; exit {number % 7}")
                for number, one in enumerate(clients)
            )
        )
        assert [(one["stdout"], one["exit_code"]) for one in done] == [
            (f"{number}\n", number % 7) for number in range(SESSIONS)
        ]
        await asyncio.gather(*(_told(one) for one in clients))


async def test_who_does_not_read_is_dropped_alone(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "PATIENCE_S", 0.2)
    outboxes: list[outbox.Outbox] = []

    class Watched(outbox.Outbox):
        """One that is looked at."""

        def __init__(self) -> None:
            super().__init__()
            outboxes.append(self)

    monkeypatch.setattr("boxd.mcp.library.bridge.Outbox", Watched)
    url = f"ws://{web.address}/v1/mcp?key={web.key}"
    async with talk(web) as other, connect(url, max_size=None, max_queue=1) as slow:
        await other.call("wrk_write", path="big", data="x" * 4_000_000)
        read = {"name": "wrk_read", "arguments": {"path": "big", "limit": 4_000_000}}
        await slow.send(_request(0, "initialize", INITIALIZE))
        for number in range(1, 16):
            await slow.send(_request(number, "tools/call", read))
        await until(lambda: any(one.full.is_set() for one in outboxes))
        assert (await other.call("fleet"))["boxes"] == []
        with pytest.raises(ConnectionClosed) as closed:
            await _read_all(slow)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013


async def _read_all(slow: ClientConnection) -> None:
    while True:
        await slow.recv()


def _request(number: int, method: str, params: Mapping[str, object]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


async def _told(client: Talk) -> None:
    await client.until_told(client.updates)
