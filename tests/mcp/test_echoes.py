"""ECHO: `echo ok` again and again by each door of the service, several calls under way at a time.

Every byte, every exit code, and one answer to each request. A round is a batch of calls.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from tests.harness.http.mcp import ACCEPT, INITIALIZE
from tests.harness.http.web import ALICE
from tests.harness.ssh.openssh import kill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import httpx

    from tests.harness.http.web import Web
    from tests.harness.ssh.frontdoor import Entrance
    from tests.plugins.figures import Figures

    Message = dict[str, Any]

pytestmark = [pytest.mark.figure("ECHO"), pytest.mark.timeout(300)]

TOGETHER = 8
"""Calls of a batch."""
CI, LONG = 512 // TOGETHER, 10_000 // TOGETHER
"""Rounds."""
PATIENCE_S = 60
"""For the answers of a batch; whoever waits longer waits for what does not come."""
WHOLE = {"exit_code": 0, "stdout": "ok\n", "stderr": "", "encoding": "utf-8", "truncated": False}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def _request(number: int, method: str, **params: object) -> Message:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _spawn(number: int) -> Message:
    return _request(number, "tools/call", name="box_spawn", arguments={"spec": "dev"})


def _echo(number: int) -> Message:
    arguments = {"box": "dev", "cmd": "echo ok"}
    return _request(number, "tools/call", name="box_exec", arguments=arguments)


def _exact(answer: Message) -> None:
    assert set(answer) == {"jsonrpc", "id", "result"}, answer
    result = answer["result"]
    assert not result.get("isError"), result
    shown = result["structuredContent"]
    assert json.loads(result["content"][0]["text"]) == shown
    assert shown == WHOLE | {"duration_ms": shown["duration_ms"]}


async def _echoes(
    rounds: Iterator[int], together: Callable[[list[Message]], Awaitable[list[Message]]]
) -> None:
    """`together` sends requests side by side and gives what came, as many messages as these."""
    for number in rounds:
        asked = [_echo(1000 + number * TOGETHER + place) for place in range(TOGETHER)]
        async with asyncio.timeout(PATIENCE_S):
            came = await together(asked)
        # What else comes, or comes twice, takes the place of an answer, in this batch or the next.
        assert sorted(one["id"] for one in came) == [one["id"] for one in asked], came
        for answer in came:
            _exact(answer)


class Pipe:
    """A door of one connection: what comes is taken in order, whatever it is."""

    def __init__(
        self,
        send: Callable[[str], Awaitable[None]],
        receive: Callable[[], Awaitable[str | bytes]],
    ) -> None:
        self._send, self._receive = send, receive

    async def together(self, asked: list[Message]) -> list[Message]:
        """Sends all, then takes as many messages."""
        for one in asked:
            await self._send(json.dumps(one))
        return [json.loads(await self._receive()) for _ in asked]

    async def one(self, asked: Message) -> Message:
        """The next message, which answers this request."""
        (answer,) = await self.together([asked])
        assert answer["id"] == asked["id"], answer
        result: Message = answer["result"]
        return result

    async def open(self) -> None:
        """The handshake."""
        await self.one(_request(1, "initialize", **INITIALIZE))
        await self._send(json.dumps(INITIALIZED))

    async def nothing_is_left(self) -> None:
        """What is asked now is answered next: nothing came after the last batch."""
        assert await self.one(_request(2, "ping")) == {}


async def test_by_websocket(web: Web, figures: Figures) -> None:
    await web.operations.boxes.up(ALICE, "dev")
    headers = {"authorization": f"Bearer {web.key}"}
    async with connect(f"ws://{web.address}/v1/mcp", additional_headers=headers) as socket:
        pipe = Pipe(socket.send, socket.recv)
        await pipe.open()
        await _echoes(figures(ci=CI, long=LONG), pipe.together)
        await pipe.nothing_is_left()


async def test_by_streamable_http(web: Web, figures: Figures) -> None:
    await web.operations.boxes.up(ALICE, "dev")
    client = web.client()

    async def post(message: Message, **named: str) -> httpx.Response:
        return await client.post("/v1/mcp", json=message, headers=ACCEPT | named)

    begun = await post(_request(1, "initialize", **INITIALIZE))
    session = {"mcp-session-id": begun.headers["mcp-session-id"]}
    assert (await post(INITIALIZED, **session)).status_code == 202

    async def together(asked: list[Message]) -> list[Message]:
        came = await asyncio.gather(*(post(one, **session) for one in asked))
        assert [one.status_code for one in came] == [200] * len(asked)
        answers: list[Message] = [one.json() for one in came]
        assert [one["id"] for one in answers] == [one["id"] for one in asked]
        return answers

    await _echoes(figures(ci=CI, long=LONG), together)


async def test_by_lines_over_ssh(front_door: Entrance, figures: Figures) -> None:
    ssh = await asyncio.create_subprocess_exec(
        *front_door.client.ssh("cli", "-T", "mcp"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert ssh.stdin is not None
    assert ssh.stdout is not None
    given, taken = ssh.stdin, ssh.stdout

    async def send(text: str) -> None:
        given.write(text.encode() + b"\n")
        await given.drain()

    try:
        pipe = Pipe(send, taken.readline)
        await pipe.open()
        await pipe.one(_spawn(3))
        await _echoes(figures(ci=CI, long=LONG), pipe.together)
        await pipe.nothing_is_left()
        async with asyncio.timeout(PATIENCE_S):
            assert await ssh.communicate(b"") == (b"", b"")
        assert ssh.returncode == 0
    finally:
        if ssh.returncode is None:
            kill(ssh)
            await ssh.communicate()
