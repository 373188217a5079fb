"""The MCP plane outlives what is said to it, by each of its doors."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.fuzz.jsonrpc import messages
from tests.harness.http.mcp import talk
from tests.harness.wait import until

if TYPE_CHECKING:
    from tests.harness.http.web import Web
    from tests.plugins.figures import Figures

POSTED = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


async def _by_socket(web: Web, random: Random) -> None:
    """One WebSocket. It is still there afterwards, and answers in JSON-RPC all the while."""
    url = f"ws://{web.address}/v1/mcp?key={web.key}"
    async with connect(url, max_size=None) as socket:
        for message in messages(random):
            await socket.send(message)
        await socket.send(
            '{"jsonrpc": "2.0", "id": "the last one", "method": "ping", "params": {}}'
        )
        while True:
            answer = json.loads(await socket.recv())
            assert answer["jsonrpc"] == "2.0"
            if answer.get("id") == "the last one":
                return


async def _by_http(web: Web, random: Random) -> None:
    """POSTs, in the session that the first of them may have begun. None is an error of ours."""
    client = web.client()
    session: dict[str, str] = {}
    for message in messages(random):
        content = message if isinstance(message, bytes) else message.encode("utf-8", "replace")
        odd = {"mcp-protocol-version": random.choice(("2026-07-28", "2025-11-25", "x"))}
        headers = POSTED | session | (odd if random.random() < 0.3 else {})
        with suppress(TimeoutError):
            async with (
                asyncio.timeout(2),
                client.stream("POST", "/v1/mcp", content=content, headers=headers) as answer,
            ):
                await answer.aread()
                assert answer.status_code < 500, (content, answer.text)
                if found := answer.headers.get("mcp-session-id"):
                    session = {"mcp-session-id": found}
    if session:
        await client.delete("/v1/mcp", headers=session)


class Typed:
    """Standard input and output of a program that says all at once."""

    def __init__(self, said: bytes) -> None:
        self._said = [said]
        self.shown = bytearray()

    async def read(self) -> bytes:
        """What it says."""
        return self._said.pop() if self._said else b""

    async def write(self, data: bytes) -> None:
        """What it is told."""
        self.shown += data


async def _by_lines(web: Web, random: Random) -> None:
    """One program. What it is told are JSON objects, one a line."""
    said = [
        one if isinstance(one, bytes) else one.encode("utf-8", "replace")
        for one in messages(random)
    ]
    stdio = Typed(b"\n".join(one.replace(b"\n", b" ") for one in said) + b"\n")
    principal = await web.operations.keys.principal_of_key(web.key)
    await web.mcp.serve_lines(principal, stdio)
    for line in bytes(stdio.shown).splitlines():
        answer: dict[str, Any] = json.loads(line)
        assert answer["jsonrpc"] == "2.0"


@pytest.mark.timeout(600)
@pytest.mark.figure("FZ-4")
async def test_nonsense_in_json(web: Web, figures: Figures) -> None:
    async with talk(web) as client:
        await client.call("fleet")  # the library is loaded
        gc.collect()
        before = len(asyncio.all_tasks())
        for name, one, count in (
            ("socket", _by_socket, 600),
            ("http", _by_http, 200),
            ("lines", _by_lines, 200),
        ):
            for seed in figures(ci=count, long=count * 100, part=name):
                try:
                    await one(web, Random(seed))
                except (AssertionError, ConnectionClosed, TimeoutError) as error:
                    raise AssertionError(f"by {name}: seed {seed}") from error
        for other in web.clients:
            await other.aclose()
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert not web.lifecycle.attachments.held()
        assert (await client.call("fleet"))["boxes"] == []
