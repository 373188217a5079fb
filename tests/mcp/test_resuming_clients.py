"""Official clients whose connection breaks in the middle of a long command: each resumes by itself,
gets the result, and the command has run once.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.harness.http.web import ALICE
from tests.harness.servers.fault_proxy import FaultProxy
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.harness.http.web import Web

    Play = Callable[["Scene"], Coroutine[None, None, dict[str, Any]]]

pytestmark = pytest.mark.timeout(120)

HERE = Path(__file__).parent / "clients"
FETCHED = Path(__file__).parents[2] / ".build/mcp/node"
PATIENCE_S = 60.0


class Scene:
    """A client's call through a proxy, and what the command of that call has done."""

    def __init__(self, web: Web, proxy: FaultProxy, directory: Path) -> None:
        self.web = web
        self.proxy = proxy
        self.directory = directory
        self.runs, self.gate = directory / "runs", directory / "gate"
        assert isinstance(proxy.listen, tuple), "a proxy on TCP"
        host, port = proxy.listen
        self.url = f"http://{host}:{port}/v1/mcp"
        command = f"echo run >> {self.runs}; until [ -e {self.gate} ]; do sleep 0.02; done; echo ok"
        self.call = ("box_exec", {"box": "dev", "cmd": command})

    def streams(self) -> list[Any]:
        """Requests of sessions with their replies. Only the call stays without an answer."""
        sessions = self.web.mcp._http._sessions.values()
        return [stream for one in sessions for stream in one._streams.values()]

    def reading(self) -> int:
        """Connections that read the answer to the call."""
        return sum(one.readers for one in self.streams() if not one.answered)

    def running(self) -> bool:
        """Whether the command has begun and has no result."""
        return self.runs.exists() and any(not one.answered for one in self.streams())


@pytest.fixture
def proxy(web: Web) -> Iterator[FaultProxy]:
    """Between client and service."""
    proxy = FaultProxy(("127.0.0.1", 0), (web.address.host, web.address.port))
    yield proxy
    proxy.close()


async def python(scene: Scene) -> dict[str, Any]:
    """The Python SDK."""
    headers = {"Authorization": f"Bearer {scene.web.key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(scene.url, http_client=http)
        async with Client(transport, mode="legacy") as client:
            result = await client.call_tool(*scene.call)
    content: dict[str, Any] | None = result.structured_content
    assert content is not None
    return content


async def typescript(scene: Scene, sdk: int) -> dict[str, Any]:
    """The TypeScript SDK."""
    plan = {"sdk": sdk, "era": "legacy", "door": "http", "url": scene.url, "key": scene.web.key}
    path = scene.directory / "plan"
    path.write_text(json.dumps(plan | {"only": scene.call}))
    with (HERE / "typescript.mjs").open() as program:
        client = await asyncio.create_subprocess_exec(
            *("node", "--input-type=module", "-"),
            stdin=program,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=FETCHED,
            env={"PLAN": str(path), "PATH": "/usr/bin:/bin"},
        )
    try:
        stdout, stderr = await client.communicate()
    finally:
        if client.returncode is None:
            client.kill()
            await client.wait()
    assert client.returncode == 0, stderr.decode()
    content: dict[str, Any] = json.loads(stdout)["content"]
    return content


async def typescript_1(scene: Scene) -> dict[str, Any]:
    """Its first generation."""
    return await typescript(scene, 1)


async def typescript_2(scene: Scene) -> dict[str, Any]:
    """Its second generation."""
    return await typescript(scene, 2)


@pytest.mark.parametrize("play", [python, typescript_1, typescript_2])
@pytest.mark.parametrize("finishes", ["after the client is back", "while the client is away"])
async def test_a_client_resumes_by_itself(
    web: Web, proxy: FaultProxy, tmp_path: Path, play: Play, finishes: str
) -> None:
    await web.operations.boxes.up(ALICE, "dev")
    scene = Scene(web, proxy, tmp_path)
    call = asyncio.create_task(play(scene))
    try:
        await until(lambda: call.done() or scene.running())
        assert not call.done(), call.result()
        if finishes == "after the client is back":
            proxy.reset()
            await until(lambda: scene.reading() == 0)
            await until(lambda: scene.reading() > 0)
            scene.gate.touch()
        else:
            proxy.down()
            await until(lambda: scene.reading() == 0)
            scene.gate.touch()
            await until(lambda: all(one.answered for one in scene.streams()))
            proxy.up()
        async with asyncio.timeout(PATIENCE_S):
            content = await call
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert content["stdout"] == "ok\n"
    assert scene.runs.read_text() == "run\n"
