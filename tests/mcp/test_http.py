"""Streamable HTTP: sessions of keys, requests without one, what is told, and who may come."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from boxd.mcp.transports import http as transport
from tests.harness.http.mcp import ACCEPT, INITIALIZE, LEGACY, MODERN, envelope
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from tests.harness.http.web import Web

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def _body(method: str, params: dict[str, Any] | None = None, number: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def _call(name: str, number: object = 1, **arguments: object) -> dict[str, Any]:
    return _body("tools/call", {"name": name, "arguments": arguments}, number)


async def _post(
    client: httpx.AsyncClient, body: object, session: str | None = None, **headers: str
) -> httpx.Response:
    named = {} if session is None else {"mcp-session-id": session}
    return await client.post("/v1/mcp", json=body, headers=ACCEPT | named | headers)


def _result(answer: httpx.Response) -> dict[str, Any]:
    """The structured result of a call; one that took a second or more comes as events."""
    text = answer.text
    if answer.headers["content-type"] == "text/event-stream":
        text = [line[6:] for line in text.splitlines() if line.startswith("data: ")][-1]
    content: dict[str, Any] = json.loads(text)["result"]["structuredContent"]
    return content


async def _begun(client: httpx.AsyncClient) -> str:
    """A session after its handshake."""
    begun = await _post(client, _body("initialize", INITIALIZE))
    assert begun.status_code == 200
    assert begun.json()["result"]["protocolVersion"] == LEGACY
    session = begun.headers["mcp-session-id"]
    assert (await _post(client, INITIALIZED, session)).status_code == 202
    return session


@asynccontextmanager
async def _news(client: httpx.AsyncClient, session: str) -> AsyncIterator[AsyncIterator[str]]:
    headers = {"accept": "text/event-stream", "mcp-session-id": session}
    async with client.stream("GET", "/v1/mcp", headers=headers) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        assert await anext(lines) == ": keepalive"
        yield lines


async def _next_event(lines: AsyncIterator[str]) -> dict[str, Any]:
    async for line in lines:
        if line.startswith("data: "):
            found: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return found
    raise AssertionError("there are no more events")


async def test_a_session_is_begun_used_and_ended(web: Web) -> None:
    client = web.client()
    session = await _begun(client)
    made = _result(await _post(client, _call("box_spawn", spec="dev"), session))
    assert made["state"] == "running"
    done = await _post(client, _call("box_exec", box="dev", cmd="echo ok"), session)
    assert _result(done)["stdout"] == "ok\n"
    named = {"mcp-session-id": session}
    assert (await client.delete("/v1/mcp", headers=named)).status_code == 204
    assert (await client.delete("/v1/mcp", headers=named)).status_code == 404
    gone = await _post(client, _call("fleet"), session)
    assert gone.status_code == 404
    assert gone.json() == {"error": "no such session; start a new one with initialize"}


async def test_a_session_belongs_to_its_key(web: Web) -> None:
    session = await _begun(web.client())
    for key in (await web.new_key(ALICE, name="two"), await web.new_key(BOB, name="bob")):
        other = web.client(key)
        unknown = await _post(other, _call("fleet"), "0" * 32)
        foreign = await _post(other, _call("fleet"), session)
        assert (foreign.status_code, foreign.content) == (404, unknown.content)
        named = {"mcp-session-id": session}
        assert (await other.delete("/v1/mcp", headers=named)).status_code == 404
        headers = named | {"accept": "text/event-stream"}
        assert (await other.get("/v1/mcp", headers=headers)).status_code == 404
    assert (await _post(web.client(), _call("fleet"), session)).status_code == 200


async def test_progress_comes_before_the_answer(web: Web, tmp_path: Path) -> None:
    client = web.client()
    session = await _begun(client)
    await _post(client, _call("box_spawn", spec="dev"), session)
    headers = ACCEPT | {"mcp-session-id": session}
    result = await _told_step_by_step(client, tmp_path, headers)
    assert result["structuredContent"]["stdout"] == "one\ntwo\n"


async def _told_step_by_step(
    client: httpx.AsyncClient, tmp_path: Path, headers: dict[str, str], **meta: object
) -> dict[str, Any]:
    """What a command in box dev gives that goes on when its last line was told."""
    gates = [tmp_path / "one", tmp_path / "two"]
    steps = (f"echo {g.name}; until [ -e {g} ]; do sleep 0.02; done" for g in gates)
    body = _call("box_exec", box="dev", cmd="; ".join(steps))
    body["params"]["_meta"] = {"progressToken": 7} | meta
    async with client.stream("POST", "/v1/mcp", json=body, headers=headers) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.aiter_lines()
        for gate in gates:
            assert (await _next_event(lines))["params"]["message"] == gate.name
            gate.touch()
        result: dict[str, Any] = (await _next_event(lines))["result"]
        return result


async def test_news_come_by_a_get_also_those_of_before(web: Web) -> None:
    client = web.client()
    session, acting = await _begun(client), await _begun(client)
    await _post(client, _body("resources/subscribe", {"uri": "svc://fleet"}), session)
    await _post(client, _call("box_spawn", spec="dev"), acting)
    async with _news(client, session) as lines:
        told = await _next_event(lines)
        assert told["params"] == {"uri": "svc://fleet"}
        async with _news(client, session) as later:
            async for _ in lines:
                pass  # the earlier one ends
            await _post(client, _call("box_pin", box="dev"), acting)
            assert (await _next_event(later))["method"] == "notifications/resources/updated"


async def test_without_a_session_a_closed_stream_ends_its_call(web: Web) -> None:
    client = web.client()
    session = await _begun(client)
    box_id = _result(await _post(client, _call("box_spawn", spec="dev"), session))["id"]
    attachments = web.lifecycle.attachments
    body = _call("box_exec", box="dev", cmd="exec sleep 1000")
    body["params"] |= META
    request = asyncio.create_task(client.post("/v1/mcp", json=body, headers=_modern("box_exec")))
    await until(lambda: attachments.count(box_id) == 1)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await until(lambda: attachments.count(box_id) == 0)


async def test_a_call_that_another_request_cancels_is_answered_so(web: Web) -> None:
    client = web.client()
    session = await _begun(client)
    await _post(client, _call("box_spawn", spec="dev"), session)
    body = _call("box_exec", number="long", box="dev", cmd="exec sleep 1000")
    request = asyncio.create_task(_post(client, body, session))
    await until(lambda: web.lifecycle.attachments.held())
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    await _post(client, cancelled | {"params": {"requestId": "long"}}, session)
    assert (await request).json()["error"] == {"code": -32800, "message": "request cancelled"}


async def test_a_revoked_key_ends_what_it_waits_for(web: Web) -> None:
    key = await web.new_key(ALICE, name="short")
    client = web.client(key)
    session = await _begun(client)
    await _post(client, _call("box_spawn", spec="dev"), session)
    async with _news(client, session) as lines:
        body = _call("box_exec", box="dev", cmd="exec sleep 1000")
        request = asyncio.create_task(_post(client, body, session))
        await until(lambda: web.lifecycle.attachments.held())
        await web.operations.keys.remove_key(ALICE, "short")
        answer = await request
        assert (answer.status_code, answer.json()) == (401, {"error": "invalid API key"})
        with pytest.raises(Exception, match=r"peer closed|incomplete|closed"):
            async for _ in lines:
                pass


async def test_unused_sessions_end(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    client = web.client()
    stays = await _begun(client)
    async with _news(client, stays):
        goes = await _begun(client)
        monkeypatch.setattr(transport, "IDLE_S", 0.01)
        await _post(client, _call("fleet"), goes)
        sessions = web.mcp._http._sessions
        await until(lambda: goes not in sessions)
        assert (await _post(client, _call("fleet"), goes)).status_code == 404
        assert (await _post(client, _call("fleet"), stays)).status_code == 200


async def test_a_key_has_so_many_sessions(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_SESSIONS", 2)
    client = web.client()
    one, two = await _begun(client), await _begun(client)
    async with _news(client, one), _news(client, two):
        refused = await _post(client, _body("initialize", INITIALIZE))
        assert refused.status_code == 429
        assert "2 sessions of one key" in refused.json()["error"]
        other = web.client(await web.new_key(ALICE, name="other"))
        await _begun(other)
    await until(lambda: not any(s.busy for s in web.mcp._http._sessions.values()))
    await _post(client, _call("fleet"), one)
    await _begun(client)
    assert (await _post(client, _call("fleet"), one)).status_code == 200
    assert (await _post(client, _call("fleet"), two)).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("{", 400, -32700),
        ("[]", 400, -32600),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}', 400, -32600),
        ('{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}', 200, -32602),
    ],
)
async def test_what_begins_no_session(web: Web, body: str, status: int, code: int) -> None:
    answer = await web.client().post("/v1/mcp", content=body, headers=ACCEPT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    await until(lambda: not web.mcp._http._sessions)


async def test_types_must_be_right(web: Web) -> None:
    client = web.client()
    wrong = await client.post("/v1/mcp", content="{}", headers=ACCEPT | {"content-type": "a/b"})
    assert (wrong.status_code, list(wrong.json())) == (415, ["error"])
    wrong = await client.post("/v1/mcp", json={}, headers={"accept": "application/json"})
    assert (wrong.status_code, list(wrong.json())) == (406, ["error"])
    wrong = await client.get("/v1/mcp", headers={"accept": "application/json"})
    assert wrong.status_code == 406
    assert (await client.get("/v1/mcp")).status_code == 400
    wrong = await client.put("/v1/mcp", json={})
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST, DELETE")


async def test_keys_come_in_headers_alone_and_cookies_never(web: Web) -> None:
    client = web.client("svc_wrong")
    for path, cookie in ((f"/v1/mcp?key={web.key}", ""), ("/v1/mcp", "svc_proxy=x")):
        answer = await client.post(path, json=_call("fleet"), headers=ACCEPT | {"cookie": cookie})
        assert answer.status_code == 401


async def test_pages_of_strangers_may_not_come(web: Web) -> None:
    client = web.client()
    own = f"http://{web.address}"
    for origin, status in ((own, 200), ("https://evil.example", 403), ("null", 403)):
        answer = await _post(client, _body("initialize", INITIALIZE), origin=origin)
        assert answer.status_code == status


# --- since 2026-07-28 ------------------------------------------------------------------------

META = {"_meta": envelope()}


def _modern(name: str | None = None, method: str = "tools/call") -> dict[str, str]:
    headers = ACCEPT | {"mcp-protocol-version": MODERN, "mcp-method": method}
    return headers | ({} if name is None else {"mcp-name": name})


async def _alone(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> httpx.Response:
    params = body["params"]
    named = _modern(params.get("name") or params.get("uri"), body["method"]) | headers
    body = body | {"params": params | {"_meta": envelope() | params.get("_meta", {})}}
    return await client.post("/v1/mcp", json=body, headers=named)


async def test_a_request_of_its_own_needs_no_session(web: Web, tmp_path: Path) -> None:
    client = web.client()
    found = (await _alone(client, _body("server/discover"))).json()["result"]
    assert found["supportedVersions"] == [MODERN]
    made = await _alone(client, _call("box_spawn", spec="dev"))
    assert "mcp-session-id" not in made.headers
    assert made.json()["result"]["structuredContent"]["name"] == "dev"
    result = await _told_step_by_step(client, tmp_path, _modern("box_exec"), **envelope())
    assert result["structuredContent"]["stdout"] == "one\ntwo\n"
    await until(lambda: web.mcp._http._stateless == {})


async def test_headers_must_say_what_the_body_says(web: Web) -> None:
    client = web.client()
    for wrong in ({"mcp-method": "tools/list"}, {"mcp-name": "other"}):
        answer = await _alone(client, _call("fleet"), **wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    answer = await _alone(client, _call("fleet"), **{"mcp-protocol-version": "2099-01-01"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    body = _call("fleet") | {"params": {"name": "fleet", "_meta": envelope()}}
    answer = await client.post("/v1/mcp", json=body, headers=ACCEPT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
    answer = await _alone(client, _body("no/such"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


async def test_a_subscription_is_a_request_that_stays(web: Web) -> None:
    client = web.client()
    wanted = {"notifications": {"resourceSubscriptions": ["svc://fleet"]}}
    body = _body("subscriptions/listen", wanted | META, 5)
    headers = _modern(method="subscriptions/listen")
    async with client.stream("POST", "/v1/mcp", json=body, headers=headers) as answer:
        lines = answer.aiter_lines()
        told = await _next_event(lines)
        assert told["method"] == "notifications/subscriptions/acknowledged"
        await _alone(client, _call("box_spawn", spec="dev"))
        told = await _next_event(lines)
        assert told["params"]["uri"] == "svc://fleet"
        assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 5}
