"""Streams of Streamable HTTP that break, and clients that continue them with `Last-Event-ID`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from boxd.mcp.messages import parked
from boxd.mcp.sessions import http_session
from tests.harness.http.mcp import INITIALIZE, LEGACY
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.harness.http.web import Web

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass
class Event:
    """One event as it came."""

    id: str
    retry: str = ""
    data: list[str] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """What it carries."""
        message: dict[str, Any] = json.loads("\n".join(self.data))
        return message


async def events(answer: httpx.Response, wanted: int | None = None) -> list[Event]:
    """The next events of a stream: so many, or all to its end."""
    found: list[Event] = []
    fields: dict[str, list[str]] = {}
    if wanted == 0:
        return found
    async for line in answer.aiter_lines():
        if line and not line.startswith(":"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
        elif fields and not line:
            number, retry = fields.get("id", [""])[0], fields.get("retry", [""])[0]
            found.append(Event(number, retry, fields.get("data", [])))
            fields = {}
            if len(found) == wanted:
                return found
    return found


class Caller:
    """A client with a session, which breaks its streams."""

    def __init__(self, web: Web) -> None:
        self.web = web
        self.client = web.client()
        self.headers = dict(ACCEPT)

    async def begin(self) -> None:
        """The handshake, and a box."""
        params = INITIALIZE
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        begun = await self.client.post("/v1/mcp", json=body, headers=self.headers)
        self.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        self.headers["mcp-protocol-version"] = LEGACY
        await self.notify("notifications/initialized")
        spawned = await self.call("box_spawn", spec="dev")
        assert spawned["result"]["structuredContent"]["created"] is True

    async def notify(self, method: str, **params: object) -> None:
        """A notification."""
        body = {"jsonrpc": "2.0", "method": method, "params": params}
        answer = await self.client.post("/v1/mcp", json=body, headers=self.headers)
        assert answer.status_code == 202

    async def call(self, name: str, **arguments: object) -> dict[str, Any]:
        """A call whose stream is read to its end; its answer."""
        return await self.call_as(1, name, **arguments)

    async def call_as(self, number: int, name: str, **arguments: object) -> dict[str, Any]:
        """The same, by an id of its own."""
        body = self.body(number, name, **arguments)
        async with self.client.stream("POST", "/v1/mcp", json=body, headers=self.headers) as answer:
            assert answer.status_code == 200
            return (await events(answer))[-1].message

    async def dropped(
        self, cmd: str, *, number: int = 7, wanted: int = 1, **more: object
    ) -> list[Event]:
        """A command whose stream the client breaks after so many events."""
        body = self.body(number, "box_exec", box="dev", cmd=cmd, **more)
        body["params"]["_meta"] = {"progressToken": number}
        async with self.client.stream("POST", "/v1/mcp", json=body, headers=self.headers) as answer:
            return await events(answer, wanted)

    async def resumed(self, last: str, wanted: int | None = None) -> list[Event]:
        """What a GET brings behind an event."""
        headers = self.headers | {"last-event-id": last}
        async with self.client.stream("GET", "/v1/mcp", headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            return await events(answer, wanted)

    async def refused(self, last: str) -> tuple[int, str]:
        """Status and error of a GET that resumes nothing."""
        headers = self.headers | {"last-event-id": last}
        answer = await self.client.get("/v1/mcp", headers=headers)
        return answer.status_code, answer.json()["error"]

    def running(self) -> bool:
        """Whether a command holds a box."""
        return bool(self.web.lifecycle.attachments.held())

    @staticmethod
    def body(number: int, name: str, **arguments: object) -> dict[str, Any]:
        """A call."""
        params = {"name": name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@pytest.fixture
async def caller(web: Web) -> Caller:
    """A client whose session has a box."""
    caller = Caller(web)
    await caller.begin()
    return caller


def gated(gate: Path, output: str) -> str:
    """A command that prints when its gate is open."""
    return f"until [ -e {gate} ]; do sleep 0.02; done; echo {output}"


async def test_a_call_outlives_its_stream_and_is_resumed(caller: Caller, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    [first] = await caller.dropped(gated(gate, "done"))
    assert (first.data, first.retry) == ([""], "1000")
    await until(caller.running)
    resuming = asyncio.create_task(caller.resumed(first.id))
    gate.touch()
    told = await resuming
    assert told[-1].message["id"] == 7
    assert told[-1].message["result"]["structuredContent"]["stdout"] == "done\n"
    assert len({event.id for event in told}) == len(told)


async def test_an_answer_made_meanwhile_is_kept_and_comes_again(
    caller: Caller, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    [first] = await caller.dropped(gated(gate, "done"))
    await until(caller.running)
    gate.touch()
    await until(lambda: not caller.running())
    last = (await caller.resumed(first.id))[-1]
    assert last.message["result"]["structuredContent"]["stdout"] == "done\n"
    assert (await caller.resumed(first.id))[-1] == last
    assert [event for event in await caller.resumed(last.id) if any(event.data)] == []


async def test_progress_before_the_event_does_not_come_again(
    caller: Caller, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    told = await caller.dropped(f"echo one; {gated(gate, 'two')}", wanted=2)
    assert told[1].message["params"]["message"] == "one"
    gate.touch()
    after = [event for event in await caller.resumed(told[1].id) if any(event.data)]
    assert "one" not in [event.message.get("params", {}).get("message") for event in after]
    assert after[-1].message["result"]["structuredContent"]["stdout"] == "one\ntwo\n"


async def test_a_client_cancels_a_call_without_a_stream(caller: Caller) -> None:
    [first] = await caller.dropped("exec sleep 1000")
    await until(caller.running)
    await caller.notify("notifications/cancelled", requestId=7)
    await until(lambda: not caller.running())
    assert (await caller.resumed(first.id))[-1].message["error"]["code"] == http_session.CANCELLED


async def test_the_end_of_the_session_ends_its_calls(caller: Caller) -> None:
    await caller.dropped("exec sleep 1000")
    await until(caller.running)
    await caller.client.delete("/v1/mcp", headers=caller.headers)
    await until(lambda: not caller.running())


async def test_a_call_that_nobody_resumes_is_cancelled(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_session, "RESUME_S", 0.01)
    await caller.dropped("exec sleep 1000")
    await until(lambda: not caller.running())


async def test_an_answer_is_kept_for_a_time(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_session, "ANSWER_S", 0.01)
    [first] = await caller.dropped("echo done")
    (session,) = caller.web.mcp._http._sessions.values()
    stream = int(first.id.split("-")[0])
    await until(lambda: stream not in session._streams)
    status, text = await caller.refused(first.id)
    assert status == 400
    assert "send the request again" in text


async def test_kept_answers_have_a_bound(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "MAX_BYTES", 3000)
    [first] = await caller.dropped("printf %02000d 1", number=1)
    (session,) = caller.web.mcp._http._sessions.values()
    await until(lambda: session._parked.size == 0 and not session.working)
    error = (await caller.resumed(first.id))[-1].message
    assert error["id"] == 1
    assert "was dropped while no connection read it" in error["error"]["message"]
    [second] = await caller.dropped("echo small", number=2)
    await until(lambda: session._parked.size > 0)
    assert "result" in (await caller.resumed(second.id))[-1].message
    assert session._parked.size <= parked.MAX_BYTES


@pytest.mark.parametrize("last", ["", "x", "1", "1-x", "99-0", "-1-2", "9" * 50 + "-1", "1-1-1"])
async def test_other_ids_resume_nothing(caller: Caller, last: str) -> None:
    status, _ = await caller.refused(last)
    assert status == 400


async def test_another_key_resumes_nothing(caller: Caller) -> None:
    [first] = await caller.dropped("exec sleep 1000")
    other = Caller(caller.web)
    other.client = caller.web.client(await caller.web.new_key(name="other"))
    other.headers = caller.headers
    assert (await other.refused(first.id))[0] == 404


async def test_news_that_were_lost_come_again(caller: Caller) -> None:
    body = {"jsonrpc": "2.0", "id": 3, "method": "resources/subscribe"}
    await caller.client.post(
        "/v1/mcp", json=body | {"params": {"uri": "svc://fleet"}}, headers=caller.headers
    )
    async with caller.client.stream("GET", "/v1/mcp", headers=caller.headers) as answer:
        lines = answer.aiter_lines()  # an iterator that ends would close the stream
        first = Event((await anext(line async for line in lines if line[:3] == "id:"))[4:])
        await caller.call("box_pin", box="dev")
        # The event is sent, and the client never reads it.
        (session,) = caller.web.mcp._http._sessions.values()
        await until(lambda: session.last_update_id != first.id)
    told = [event for event in await caller.resumed(first.id, 2) if any(event.data)]
    assert [event.message["params"] for event in told] == [{"uri": "svc://fleet"}]


async def test_two_spawns_at_once_create_one_box(caller: Caller) -> None:
    made = await asyncio.gather(
        *(caller.call_as(n, "box_spawn", spec="one") for n in range(20, 28))
    )
    found = [answer["result"]["structuredContent"] for answer in made]
    assert len({one["id"] for one in found}) == 1
    assert sorted(one["created"] for one in found) == [False] * 7 + [True]
