"""Large results: how many bytes of them are in the making at once, and that all come back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from boxd.boxes.limits.budgets import results as budget
from tests.harness.http.mcp import envelope, talk
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web

SIZE = 400_000
CONTENT = 'line\n"\\ é \U0001f600' * (SIZE // 16)


class Watched(budget.Budget):
    """One that is looked at, with room for three results."""

    made: list[Watched]

    def __init__(self) -> None:
        super().__init__(3 * SIZE)
        self.asked = 0
        self.most = 0
        self.made.append(self)

    async def take(self, size: int) -> int:
        """Counts."""
        self.asked += 1
        taken = await super().take(size)
        self.most = max(self.most, self.taken)
        return taken


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Those that are made."""
    monkeypatch.setattr(Watched, "made", [], raising=False)
    monkeypatch.setattr(budget, "Budget", Watched)
    return Watched.made


def _read() -> dict[str, Any]:
    return {"name": "wrk_read", "arguments": {"path": "big", "limit": SIZE}}


async def test_all_connections_of_an_owner_share_one_budget(
    web: Web, budgets: list[Watched]
) -> None:
    async with talk(web) as one, talk(web) as other, talk(web, modern=True) as third:
        await one.call("wrk_write", path="big", data=CONTENT)
        clients = [one, other, third]
        await asyncio.gather(
            *(client.call("wrk_read", path="big", limit=SIZE) for client in clients * 6)
        )
        (watched,) = budgets
        await until(lambda: watched.taken == 0)
        assert watched.asked == 18
        assert 0 < watched.most <= watched.size


async def test_http_shares_it_and_gives_it_back(web: Web, budgets: list[Watched]) -> None:
    async with talk(web) as client:
        wrote = await client.call("wrk_write", path="big", data=CONTENT)
        head = {"accept": "application/json, text/event-stream"}
        head |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
        http = web.client(**head, **{"mcp-name": "wrk_read"})
        params = _read() | {"_meta": envelope()}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answers = await asyncio.gather(*(http.post("/v1/mcp", json=body) for _ in range(6)))
        assert {answer.json()["result"]["structuredContent"]["etag"] for answer in answers} == {
            wrote["etag"]
        }
        (watched,) = budgets
        assert (watched.asked, watched.taken) == (6, 0)
        assert 0 < watched.most <= watched.size


async def test_waiters_go_with_their_call_and_small_calls_pass(
    web: Web, budgets: list[Watched]
) -> None:
    async with talk(web) as client:
        await client.call("wrk_write", path="big", data=CONTENT)
        (watched,) = budgets
        await watched.take(watched.size)
        numbers = [await client.begin("tools/call", _read()) for _ in range(2)]
        await until(lambda: watched.asked == 3)
        assert (await client.call("wrk_read", path="big", limit=5))["data"] == CONTENT[:5]
        assert watched.asked == 3
        await client.notify("notifications/cancelled", {"requestId": numbers[0]})
        await client.result("ping")
        watched.give(watched.size)
        answer = await client.answer(numbers[1])
        assert answer["result"]["structuredContent"]["size"] == len(CONTENT.encode())
        assert not client.answer(numbers[0]).done()
        await until(lambda: watched.taken == 0)


async def test_the_end_of_a_connection_gives_all_back(web: Web, budgets: list[Watched]) -> None:
    async with talk(web) as client:
        await client.call("wrk_write", path="big", data=CONTENT)
        (watched,) = budgets
        await watched.take(SIZE)
        for _ in range(12):
            await client.begin("tools/call", _read())
        await until(lambda: watched.asked == 13)
    async with talk(web) as again:
        watched.give(SIZE)
        await until(lambda: watched.taken == 0)
        assert (await again.call("wrk_read", path="big", limit=SIZE))["encoding"] == "utf-8"
    assert len(budgets) <= 2


async def test_the_bytes_of_a_large_answer_are_those_of_the_plain_way(web: Web) -> None:
    url = f"ws://{web.address}/v1/mcp?key={web.key}"
    async with talk(web) as client, connect(url, max_size=None) as plain:
        await client.call("wrk_write", path="big", data=CONTENT)
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        await plain.send(json.dumps(call | {"params": _read() | {"_meta": envelope()}}))
        text = await plain.recv()
    answer = json.loads(text)
    shown = answer["result"]["structuredContent"]
    assert shown["data"] == CONTENT
    assert text == json.dumps(answer, separators=(",", ":"))
    assert answer["result"]["content"][0]["text"] == json.dumps(shown, ensure_ascii=False)
