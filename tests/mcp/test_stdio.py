"""The transport for programs that start ssh: one message per line, and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from boxd.mcp.transports import stdio
from tests.harness.http.mcp import INITIALIZE, envelope
from tests.harness.ssh.openssh import kill
from tests.harness.wait import DEADLINE, until

if TYPE_CHECKING:
    import pytest

    from tests.harness.ssh.frontdoor import Entrance

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def _request(number: int, method: str, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _call(number: int, name: str, **arguments: object) -> dict[str, Any]:
    return _request(number, "tools/call", name=name, arguments=arguments)


def _text(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


async def test_a_pipe_gets_its_answers_and_stderr_stays_empty(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "LINGER_S", DEADLINE)  # a box is made meanwhile
    given = _text(
        _request(1, "initialize", **INITIALIZE), INITIALIZED, _call(2, "box_spawn", spec="dev")
    )
    done = await front_door.client.run("cli", "-T", "mcp", stdin=b"\n" + given + b"{\n\n")
    assert (done.status, done.errors) == (0, "")
    answers = [json.loads(line) for line in done.text.splitlines()]
    assert {one["id"] for one in answers} == {1, 2, None}
    (broken,) = [one for one in answers if one["id"] is None]
    assert broken["error"]["code"] == -32700
    (spawned,) = [one for one in answers if one["id"] == 2]
    assert spawned["result"]["structuredContent"]["state"] == "running"


async def test_since_2026_one_line_is_enough(front_door: Entrance) -> None:
    asked = _request(1, "tools/call", name="fleet", arguments={}, _meta=envelope())
    done = await front_door.client.run("cli", "-T", "mcp", stdin=_text(asked))
    assert (done.status, done.errors) == (0, "")
    assert json.loads(done.text)["result"]["structuredContent"]["boxes"] == []


async def test_a_message_without_end_ends_the_client(
    front_door: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "MAX_LINE", 100_000)
    done = await front_door.client.run("cli", "-T", "mcp", stdin=b"x" * 300_000)
    assert (done.status, done.text) == (1, "")
    assert done.errors == "the message is longer than 100000 bytes; send a shorter one\n"


async def test_a_client_that_is_gone_leaves_nothing(front_door: Entrance) -> None:
    attachments = front_door.lifecycle.attachments
    ssh = await asyncio.create_subprocess_exec(
        *front_door.client.ssh("cli", "-T", "mcp"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert ssh.stdin is not None
    assert ssh.stdout is not None
    ssh.stdin.write(_text(_request(1, "initialize", **INITIALIZE), INITIALIZED))
    ssh.stdin.write(_text(_call(2, "box_spawn", spec="dev")))
    await ssh.stdout.readline()
    box = json.loads(await ssh.stdout.readline())["result"]["structuredContent"]["id"]
    ssh.stdin.write(_text(_call(3, "box_exec", box="dev", cmd="exec sleep 1000")))
    await until(lambda: attachments.count(box) == 1)
    kill(ssh)
    await until(lambda: attachments.count(box) == 0)
    await ssh.communicate()
