"""Background commands over HTTP, run by the real agent behind a real tunnel."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from box_guest.shared import command_messages
from boxd.boxes.presence import expiry
from tests.harness.agents.given import give
from tests.harness.http.commands import STREAM, header
from tests.harness.http.errors import error_of
from tests.harness.http.web import ALICE, BOB
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web

JSON = {"content-type": "application/json"}
UNKNOWN = "0123456789abcdef"


@dataclass
class Tail:
    """What a client has received of an output stream."""

    stdout: bytes = b""
    stderr: bytes = b""
    dropped: int = 0
    next: int = 0
    code: int | None = None
    failed: str | None = None
    names: list[str] = field(default_factory=list)

    def take(self, block: str) -> None:
        """Take one event, strictly."""
        if block == ": keepalive":
            return
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        assert self.code is None, "an event after the end"
        name, data = lines["event"], lines["data"]
        self.names.append(name)
        if name in ("stdout", "stderr"):
            raw = base64.b64decode(data, validate=True)
            assert 0 < len(raw) <= 65536
            setattr(self, name, getattr(self, name) + raw)
            self.next += len(raw)
        elif name == "dropped":
            self.dropped += json.loads(data)["bytes"]
            self.next += json.loads(data)["bytes"]
        elif name == "exit":
            self.code = json.loads(data)["code"]
        else:
            self.failed = json.loads(data)["error"]
        if name in ("stdout", "stderr", "dropped"):
            assert int(lines["id"]) == self.next


async def create(web: Web, cmd: str, ref: str = "web", **fields: object) -> dict[str, Any]:
    """Start a background command in an existing box."""
    answer = await web.client().post(f"/v1/boxes/{ref}/commands", json={"cmd": cmd, **fields})
    assert answer.status_code == 201, answer.text
    command: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/boxes/{command['box']}/commands/{command['id']}"
    return command


def path_of(command: dict[str, Any], rest: str = "") -> str:
    """The path of a command."""
    return f"/v1/boxes/{command['box']}/commands/{command['id']}{rest}"


async def tail(
    client: httpx.AsyncClient, command: dict[str, Any], taken: Tail, until_: int | None = None
) -> Tail:
    """Follow the output from where `taken` ends: to the end, or at least to an offset."""
    headers = {"last-event-id": str(taken.next)}
    buffer = ""
    async with client.stream("GET", path_of(command, "/output"), headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        async for text in answer.aiter_text():
            buffer += text
            *blocks, buffer = buffer.split("\n\n")
            for block in blocks:
                taken.take(block)
            if until_ is not None and taken.next >= until_:
                return taken
    return taken


@pytest.fixture
async def box(web: Web) -> str:
    """The id of a box of Alice."""
    return (await web.operations.boxes.up(ALICE, "web")).id


async def test_an_exec_need_not_be_waited_for(web: Web) -> None:
    client = web.client()
    body = header("cat; echo err >&2; exit 4") + b"input\n"
    answer = await client.post(
        "/v1/exec/web", content=body, headers=STREAM | {"prefer": "respond-async, wait=1"}
    )
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "respond-async"
    command = answer.json()
    assert answer.headers["location"] == path_of(command)
    done = await tail(client, command, Tail())
    assert (done.stdout, done.stderr, done.code) == (b"input\n", b"err\n", 4)
    shown = (await client.get(answer.headers["location"])).json()
    assert (shown["state"], shown["exit_code"], shown["cmd"]) == (
        "exited",
        4,
        "cat; echo err >&2; exit 4",
    )
    assert shown["timeout_s"] is None
    assert datetime.fromisoformat(shown["started"]) <= datetime.fromisoformat(shown["ended"])


async def test_a_plain_exec_need_not_be_waited_for(web: Web) -> None:
    headers = {"content-type": "text/plain", "prefer": "Respond-Async"}
    answer = await web.client().post("/v1/exec/web", content=b"echo hello", headers=headers)
    assert answer.status_code == 202
    assert (await tail(web.client(), answer.json(), Tail())).stdout == b"hello\n"


async def test_a_disconnect_resumes_exactly(web: Web, box: str) -> None:
    del box
    command = await create(web, "while read x; do echo $x; echo e$x >&2; done; exit 7", stdin=True)
    taken, expected = Tail(), b""
    client = web.client()
    for turn in range(4):
        word = f"turn{turn}" + "x" * random.Random(turn).randrange(60_000)
        answer = await client.post(path_of(command, "/stdin"), content=word.encode() + b"\n")
        assert answer.status_code == 200
        assert answer.json()["stdin_open"]
        expected += word.encode() + b"\n"
        await tail(client, command, taken, until_=taken.next + 2 * len(word) + 3)
        assert taken.stdout == expected
    answer = await client.post(path_of(command, "/stdin?close=true"))
    assert not answer.json()["stdin_open"]
    await tail(client, command, taken)
    assert taken.stderr == b"".join(b"e" + line + b"\n" for line in expected.splitlines())
    assert (taken.code, taken.names.count("exit")) == (7, 1)


async def test_a_command_may_end_before_its_input_is_closed(web: Web, box: str) -> None:
    """It has read every byte, so the request succeeds, whichever of the two is first."""
    del box
    client = web.client()
    for _ in range(10):
        command = await create(web, "head -c 3", stdin=True)
        answer = await client.post(path_of(command, "/stdin?close=true"), content=b"abc")
        assert answer.status_code == 200, answer.text
        assert not answer.json()["stdin_open"]
        assert (await tail(client, command, Tail())).stdout == b"abc"


async def test_the_stored_output_as_one_object(web: Web, box: str) -> None:
    del box
    command = await create(web, "printf abc; sleep 0.3; printf de >&2; exit 3")
    await tail(web.client(), command, Tail())
    client = web.client()
    whole = (await client.get(path_of(command, "/output?follow=false"))).json()
    assert whole == {
        "stdout": "YWJj",
        "stderr": "ZGU=",
        "next_offset": 5,
        "dropped_bytes": 0,
        "state": "exited",
        "exit_code": 3,
    }
    part = (await client.get(path_of(command, "/output?follow=false&offset=1&limit=3"))).json()
    assert (part["stdout"], part["stderr"], part["next_offset"]) == ("YmM=", "ZA==", 4)
    for query, status in (
        ("offset=6", 400),
        ("offset=x", 400),
        ("offset=-1", 400),
        ("limit=0", 400),
    ):
        answer = await client.get(path_of(command, f"/output?follow=false&{query}"))
        assert answer.status_code == status, query
    answer = await client.get(path_of(command, "/output"), headers={"last-event-id": "a"})
    assert answer.status_code == 400
    running = await create(web, "echo begun; read x", stdin=True)
    await tail(client, running, Tail(), until_=6)
    part = (await client.get(path_of(running, "/output?follow=false"))).json()
    assert (part["state"], part["exit_code"], part["next_offset"]) == ("running", None, 6)


async def test_dropped_output_is_named(web: Web, box: str) -> None:
    del box
    extra = 1000
    command = await create(web, f"head -c {command_messages.CAPACITY + extra} /dev/zero")
    done = await tail(web.client(), command, Tail())
    assert done.code == 0
    assert done.dropped + len(done.stdout) == command_messages.CAPACITY + extra
    again = await tail(web.client(), command, Tail())
    assert (again.dropped, len(again.stdout)) == (extra, command_messages.CAPACITY)
    shown = (await web.client().get(path_of(command))).json()
    assert shown["dropped_bytes"] == extra


async def test_signals_and_removal(web: Web, box: str) -> None:
    client = web.client()
    command = await create(web, "exec sleep 1000", keep_awake=False, timeout_s=5000)
    assert (command["keep_awake"], command["timeout_s"], command["stdin_open"]) == (
        False,
        5000,
        False,
    )
    answer = await client.post(path_of(command, "/signal"), json={"signal": "sigterm"})
    assert answer.status_code == 200
    assert (await tail(client, command, Tail())).code == 143
    answer = await client.post(path_of(command, "/signal"), json={"signal": "TERM"})
    assert answer.status_code == 409
    for bad in ({"signal": "SEGV"}, {"signal": 9}, {}, {"signal": "TERM", "more": 1}):
        answer = await client.post(path_of(command, "/signal"), json=bad)
        assert answer.status_code == 400, bad
    other = await create(web, "exec sleep 1000")
    listed = (await client.get(f"/v1/boxes/{box}/commands")).json()
    assert [one["id"] for one in listed] == [command["id"], other["id"]]
    assert (await client.delete(path_of(other))).status_code == 204
    assert (await client.delete(path_of(other))).status_code == 404
    assert [one["id"] for one in (await client.get("/v1/boxes/web/commands")).json()] == [
        command["id"]
    ]


async def test_bad_requests(web: Web, box: str) -> None:
    del box
    client = web.client()
    for bad in (
        {},
        {"cmd": ""},
        {"cmd": "a\0b"},
        {"cmd": 1},
        {"cmd": "true", "timeout_s": 0},
        {"cmd": "true", "timeout_s": 604_801},
        {"cmd": "true", "env": {"a b": "c"}},
        {"cmd": "true", "unknown": 1},
        {"cmd": "true", "stdin": "yes"},
    ):
        answer = await client.post("/v1/boxes/web/commands", json=bad)
        assert answer.status_code == 400, bad
        assert error_of(answer)
    for content in (b"", b"[", b"[]", b"\xff", b"[" * 100_000):
        answer = await client.post("/v1/boxes/web/commands", content=content, headers=JSON)
        assert answer.status_code == 400
    large = b'{"cmd": "' + b"x" * (1 << 20) + b'"}'
    answer = await client.post("/v1/boxes/web/commands", content=large, headers=JSON)
    assert answer.status_code == 413
    for number in (UNKNOWN, "x", "0123", UNKNOWN.upper()):
        base = f"/v1/boxes/web/commands/{number}"
        assert (await client.get(base)).status_code == 404
        assert (await client.delete(base)).status_code == 404
        assert (await client.get(f"{base}/output")).status_code == 404
        assert (await client.post(f"{base}/stdin", content=b"x")).status_code == 404
        assert (await client.post(f"{base}/signal", json={"signal": "TERM"})).status_code == 404
    headers = STREAM | {"prefer": "respond-async"}
    for line in (b"", b"{}", header("true", timeout_s=700_000)):
        answer = await client.post("/v1/exec/web", content=line, headers=headers)
        assert answer.status_code == 400
    assert (await client.get("/v1/boxes/none/commands")).status_code == 404


async def test_only_the_owner_reaches_a_command(web: Web, box: str) -> None:
    command = await create(web, "read x", stdin=True)
    for key in (await web.new_key(BOB), await web.new_key(ALICE, scope="ws1")):
        client = web.client(key)
        assert (await client.get(path_of(command))).status_code == 404
        assert (await client.get(path_of(command, "/output"))).status_code == 404
        assert (await client.post(path_of(command, "/stdin"))).status_code == 404
        assert (await client.delete(path_of(command))).status_code == 404
        assert (await client.get(f"/v1/boxes/{box}/watch?path=/")).status_code == 404


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_key_that_ends_ends_the_stream_and_not_the_command(
    web: Web, box: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    del box
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.1)
    command = await create(web, "echo begun; read x; echo end", stdin=True)
    ttl = timedelta(seconds=2) if how == "expired" else None
    client = web.client(await web.new_key(ttl=ttl, name="short"))
    taken = Tail()
    following = asyncio.create_task(tail(client, command, taken))
    await until(lambda: taken.stdout == b"begun\n")
    if how == "revoked":
        await web.operations.keys.remove_key(ALICE, "short")
    with pytest.raises(httpx.RemoteProtocolError):
        await following
    assert (
        taken.failed
        == {
            "revoked": "API key short was revoked",
            "expired": "this API key has expired",
        }[how]
    )
    assert (await client.get(path_of(command))).status_code == 401
    await web.client().post(path_of(command, "/stdin"), content=b"\n")
    assert (await tail(web.client(), command, Tail())).stdout == b"begun\nend\n"


async def test_a_client_that_leaves_while_it_sends_input(web: Web) -> None:
    """The command of an exec that was not accepted as a whole does not stay."""
    reader, writer = await web.connect()
    body = header("cat >/dev/null")
    writer.write(
        f"POST /v1/exec/web HTTP/1.1\r\nHost: x\r\nX-Api-Key: {web.key}\r\n"
        "Prefer: respond-async\r\nContent-Type: application/x-svc-exec\r\n"
        f"Content-Length: {len(body) + 5}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    client = web.client()

    async def until_listed(count: int) -> None:
        async with asyncio.timeout(30):
            while True:
                answer = await client.get("/v1/boxes/web/commands")
                if answer.status_code == 200 and len(answer.json()) == count:
                    return

    await until_listed(1)
    writer.close()
    await until_listed(0)
    assert await reader.read() == b""


async def test_the_command_has_the_secrets_and_its_own_variables(
    web: Web, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del box
    give(monkeypatch, web.operations, {"TOKEN": "secret", "MODE": "box"})
    command = await create(web, "echo $TOKEN $MODE", env={"MODE": "own"})
    assert (await tail(web.client(), command, Tail())).stdout == b"secret own\n"
    assert "secret" not in (await web.client().get(path_of(command))).text


async def test_times_are_in_utc(web: Web, box: str) -> None:
    del box
    command = await create(web, "true")
    assert abs(datetime.fromisoformat(command["started"]) - datetime.now(UTC)) < timedelta(hours=1)
