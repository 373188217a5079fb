"""JSON-RPC and the protocol's two eras, over a WebSocket."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from boxd.boxes.presence import expiry
from boxd.clock import SystemClock
from tests.harness.http.mcp import INITIALIZE, LEGACY, MODERN, envelope, talk
from tests.harness.http.web import ALICE, BOB

if TYPE_CHECKING:
    from tests.harness.http.web import Web


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", LEGACY])
async def test_the_handshake_tells_what_there_is(web: Web, version: str) -> None:
    async with talk(web, opened=False) as client:
        found = await client.open(version)
    assert found["protocolVersion"] == version
    assert found["serverInfo"]["name"] == "boxd"
    assert "box_spawn" in found["instructions"]
    assert found["capabilities"] == {
        "tools": {"listChanged": False},
        "resources": {"subscribe": True, "listChanged": True},
    }


async def test_an_unknown_version_is_answered_with_the_newest_one_of_its_era(web: Web) -> None:
    async with talk(web, opened=False) as client:
        assert (await client.open("1999-01-01"))["protocolVersion"] == LEGACY


async def test_since_2026_there_is_no_handshake(web: Web) -> None:
    async with talk(web, modern=True) as client:
        found = await client.result("server/discover")
        assert found["supportedVersions"] == [MODERN]
        assert found["capabilities"]["tools"] == {"listChanged": False}
        assert found["resultType"] == "complete"
        listed = await client.result("tools/list")
        assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")
        assert (await client.call("fleet"))["boxes"] == []
        assert await client.error("resources/read", {"uri": "svc://none"}) == (
            -32602,
            "no resource 'svc://none'; see: resources/list",
        )
        code, _ = await client.error("initialize", INITIALIZE)
        assert code == -32022
        meta = envelope(**{"io.modelcontextprotocol/protocolVersion": "2099-01-01"})
        answer = await client.ask("tools/list", {"_meta": meta})
        assert answer["error"]["code"] == -32022
        assert answer["error"]["data"] == {"supported": [MODERN], "requested": "2099-01-01"}


async def test_the_first_call_decides(web: Web) -> None:
    async with talk(web, opened=False) as client:
        assert await client.result("ping") == {}
        assert await client.error("tools/list") == (-32600, "the first request must be initialize")
        assert await client.error("no/such") == (-32600, "the first request must be initialize")
        await client.open()
        assert await client.error("no/such") == (-32601, "Method not found")
        code, _ = await client.error("tools/list", {"_meta": envelope()})
        assert code == -32600
        assert (await client.error("tools/call", {"name": "box_fly"}))[0] == -32602
        assert (await client.error("tools/call", {"name": 5}))[0] == -32602
        assert (await client.error("resources/read", {"uri": "svc://none"}))[0] == -32002
        assert await client.result("logging/setLevel", {"level": "info"}) == {}


@pytest.mark.parametrize(
    ("frame", "code", "number"),
    [
        ("{", -32700, None),
        ("", -32700, None),
        (b"\xff", -32700, None),
        ("[" * 9_000, -32700, None),
        ("[" * 100_000, -32600, None),
        ('{"jsonrpc": "2.0", "id": NaN, "method": "ping"}', -32700, None),
        ('"text"', -32600, None),
        ('[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600, None),
        ('{"jsonrpc": "1.0", "id": 7, "method": "ping"}', -32600, 7),
        ('{"id": "a", "method": "ping"}', -32600, "a"),
        ('{"jsonrpc": "2.0", "id": null, "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 7, "method": 5}', -32600, 7),
        ('{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": [1]}', -32600, 7),
        ('{"jsonrpc": "2.0", "id": 7, "method": "\\ud800"}', -32601, 7),
    ],
)
async def test_what_is_no_message_is_told_and_does_no_harm(
    web: Web, frame: str | bytes, code: int, number: int | str | None
) -> None:
    async with talk(web) as client:
        await client.send(frame)
        answer = await client.answer(number)
        assert answer["error"]["code"] == code
        assert await client.result("ping") == {}


async def test_binary_frames_are_text(web: Web) -> None:
    async with talk(web) as client:
        await client.send(json.dumps({"jsonrpc": "2.0", "id": 99, "method": "ping"}).encode())
        assert (await client.answer(99))["result"] == {}


async def test_answers_to_questions_nobody_asked_are_dropped(web: Web) -> None:
    async with talk(web) as client:
        await client.send({"jsonrpc": "2.0", "id": 5, "result": {}})
        await client.send({"jsonrpc": "2.0", "id": 5, "error": {"code": 1, "message": "no"}})
        await client.notify("notifications/cancelled", {"requestId": 77})
        await client.notify("no/such", {"a": 1})
        await client.notify("notifications/progress", {"progressToken": {}})
        assert await client.result("ping") == {}


async def test_without_a_key_there_is_no_handshake_of_the_socket(web: Web) -> None:
    for query, headers in (("", {}), ("?key=svc_wrong", {}), ("", {"cookie": "svc_proxy=x"})):
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{web.address}/v1/mcp{query}", additional_headers=headers)
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"") == {"error": "invalid API key"}


async def test_the_key_may_stand_in_the_address_and_any_page_may_come(web: Web) -> None:
    url = f"ws://{web.address}/v1/mcp?key={web.key}"
    other, ours = Subprotocol("other"), Subprotocol("mcp")
    origin = Origin("https://anyone.example")
    async with connect(url, origin=origin, subprotocols=[other, ours]) as one:
        assert one.subprotocol == ours
    async with connect(url, subprotocols=[other]) as one:
        assert one.subprotocol is None


async def test_a_revoked_key_ends_its_sessions_and_no_others(web: Web) -> None:
    key = await web.new_key(ALICE, name="short")
    async with talk(web) as stays, talk(web, key) as idle, talk(web, key) as busy:
        await stays.call("box_spawn", spec="dev")
        await busy.begin("tools/call", {"name": "box_exec", "arguments": EXEC_LONG})
        await web.operations.keys.remove_key(ALICE, "short")
        for client in (idle, busy):
            assert await client.closed() == (1008, "API key short was revoked")
        assert await stays.result("ping") == {}


async def test_a_key_that_expires_ends_its_idle_sessions(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.05)
    key = await web.new_key(ALICE, name="short", ttl=timedelta(hours=1))
    async with talk(web, key) as idle:
        later = datetime.now(UTC) + timedelta(hours=1)
        monkeypatch.setattr(SystemClock, "now", lambda _: later)
        assert await idle.closed() == (1008, "this API key has expired")


async def test_a_blocked_owner_is_sent_away(web: Web) -> None:
    async with talk(web) as idle, talk(web, await web.new_key(BOB, name="bob")) as bob:
        web.lifecycle.attachments.end_owner(ALICE.owner, "this owner is blocked")
        assert await idle.closed() == (1008, "this owner is blocked")
        assert await bob.result("ping") == {}


async def test_owners_see_nothing_of_each_other(web: Web) -> None:
    key = await web.new_key(BOB, name="bob")
    async with talk(web) as alice, talk(web, key) as bob:
        box = await alice.call("box_spawn", spec="dev")
        for ref in ("dev", box["id"], box["id"][:8]):
            assert (await bob.refusal("box_exec", box=ref, cmd="true")).startswith("no box")
            assert (await bob.refusal("box_rm", box=ref)).startswith("no box")
            assert (await bob.refusal("box_read", box=ref, path="/")).startswith("no box")
        await alice.call("wrk_write", path="mine", data="x")
        assert "nothing is there" in await bob.refusal("wrk_read", path="mine")
        assert (await bob.call("fleet"))["boxes"] == []


EXEC_LONG = {"box": "dev", "cmd": "echo begun; exec sleep 1000"}
