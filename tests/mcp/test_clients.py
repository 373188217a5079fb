"""The protocol's official clients: every tool, pushes, progress and cancellation, on each door and
in each era. What they validate (schemas, envelopes, order) is validated here by them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from boxd.mcp.tools.registry import TOOLS
from tests.harness.http.mcp import MODERN
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from tests.harness.http.web import Web
    from tests.harness.ssh.frontdoor import Entrance

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 240
"""For a whole program, with all of its calls."""
HERE = Path(__file__).parent / "clients"
FETCHED = Path(__file__).parents[2] / ".build/mcp"
BOX = "dev"
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("fleet", {}),
    ("box_spawn", {"spec": BOX}),
    ("box_exec", {"box": BOX, "cmd": "echo ok; exit 3"}),
    ("box_write", {"box": BOX, "path": "/tmp/mcp-client/file", "data": "hällo"}),
    ("box_read", {"box": BOX, "path": "/tmp/mcp-client/file"}),
    ("box_read", {"box": BOX, "path": "/tmp/mcp-client"}),
    ("box_exec", {"box": BOX, "cmd": "rm -r /tmp/mcp-client"}),
    ("command_start", {"box": BOX, "cmd": "exec sleep 1000", "keep_awake": False}),
    ("command_list", {"box": BOX}),
    ("command_output", {"box": BOX, "id": "0123456789abcdef"}),
    ("command_write", {"box": BOX, "id": "0123456789abcdef"}),
    ("command_end", {"box": BOX, "id": "0123456789abcdef"}),
    ("delegate", {"prompt": "echo done", "box": BOX}),
    ("box_info", {"box": BOX}),
    ("box_ports", {"box": BOX}),
    ("share_create", {"box": BOX}),
    ("share_list", {}),
    ("share_rm", {"id": "none"}),
    ("snapshot_create", {"box": BOX, "name": "one"}),
    ("snapshot_list", {}),
    ("snapshot_restore", {"box": BOX, "name": "one"}),
    ("snapshot_rm", {"box": BOX, "name": "one"}),
    ("box_pin", {"box": BOX, "for_s": 60}),
    ("box_unpin", {"box": BOX}),
    ("box_keep", {"box": BOX}),
    ("box_suspend", {"box": BOX}),
    ("box_resume", {"box": BOX}),
    ("box_fork", {"base": BOX, "name": "two"}),
    ("wrk_write", {"path": "a/b", "data": "text"}),
    ("wrk_read", {"path": "a/b"}),
    ("wrk_list", {"path": "a"}),
    ("wrk_mkdir", {"path": "a/c"}),
    ("wrk_clone", {"path": "a", "to": "b"}),
    ("wrk_snapshot", {"name": "first"}),
    ("wrk_snapshots", {}),
    ("wrk_snapshot_restore", {"name": "first", "path": "/a", "to": "d"}),
    ("wrk_snapshot_remove", {"name": "first"}),
    ("wrk_move", {"path": "b", "to": "e"}),
    ("wrk_delete", {"path": "a"}),
    ("wrk_trash", {}),
    ("wrk_restore", {"path": "a"}),
    ("ws_create", {"name": "api"}),
    ("ws_list", {}),
    ("ws_profile", {"name": "api"}),
    ("ws_rm", {"name": "api"}),
    ("profile_set", {"name": "py", "image": "debian"}),
    ("profile_list", {}),
    ("profile_show", {"name": "py"}),
    ("profile_build", {"name": "lab", "box": BOX}),
    ("profile_rm", {"name": "py"}),
    ("agent_set", {"cmd": "agent", "env": "AGENT_TOKEN", "token": "hidden"}),
    ("agent_show", {}),
    ("agent_rm", {}),
    ("key_list", {}),
    ("key_rm", {"name": "none"}),
    ("whoami", {}),
    ("stat", {}),
    ("image_list", {}),
    ("flavor_list", {}),
    ("secret_set", {"name": "TOKEN", "value": "hidden"}),
    ("secret_list", {}),
    ("secret_rm", {"name": "TOKEN"}),
    ("account_name", {"name": "Alice"}),
    ("account_key_list", {}),
    ("account_key_rm", {"key": "first"}),
    ("surface_render", {"id": "plan", "content": "# Plan"}),
    ("surface_list", {}),
    ("surface_rm", {"id": "plan"}),
    ("ask", {"question": "Go on?"}),
    ("answer", {"id": "none", "answer": "yes"}),
    ("box_rm", {"box": BOX, "force": True}),
    ("box_spawn", {"spec": BOX}),
]
REFUSED = {"box_suspend", "box_resume", "box_fork", "wrk_restore", "answer"}
REFUSED |= {"account_key_rm", "key_rm", "share_rm"}
REFUSED |= {"snapshot_create", "snapshot_restore", "snapshot_rm", "profile_build"}
REFUSED |= {"command_output", "command_write", "command_end"}
"""What boxes that are plain processes cannot, a drive without trash, the only SSH key, and a
missing question, command, API key and share."""
ENDLESS = {"box": BOX, "cmd": "echo begun; exec sleep 1000"}


def _talking(gate: Path) -> dict[str, Any]:
    """A call that ends when the client, told of its progress, has made a file."""
    return {"box": BOX, "cmd": f"echo shown; until [ -e {gate} ]; do sleep 0.02; done"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The library tells in the log what it could not take over any more when it ends."""
    logger = logging.getLogger("mcp.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def _check(came: Mapping[str, Any], *, drives: bool = True) -> None:
    """What came of all calls is what each of them is for."""
    assert came["tools"] == [tool.name for tool in TOOLS]
    assert {name for name, _ in CALLS} == {tool.name for tool in TOOLS}
    found = dict(zip((name for name, _ in CALLS), came["results"], strict=True))
    refused = {name for name, result in found.items() if result["error"]}
    absent = {tool.name for tool in TOOLS if tool.name.startswith("wrk_")}
    assert refused == REFUSED | (set() if drives else absent)
    contents = [result["content"] for result in came["results"]]
    assert contents[2]["stdout"] == "ok\n"
    assert contents[2]["exit_code"] == 3
    assert contents[4]["data"] == "hällo"
    assert [one["name"] for one in contents[5]["entries"]] == ["file"]
    assert came["push"] == "svc://fleet"
    assert came["progress"] == ["shown"]
    assert came["ended"] in (True, None)
    assert came["boxes"] == 1


async def _python(
    transport: AbstractAsyncContextManager[Any], era: str, gate: Path
) -> dict[str, Any]:
    """The same by the Python SDK that the service is made with."""
    updated: asyncio.Queue[str] = asyncio.Queue()

    async def told(message: object) -> None:
        if (uri := getattr(getattr(message, "params", None), "uri", None)) is not None:
            updated.put_nowait(str(uri))

    async with Client(transport, mode=era, message_handler=told) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = []
        for name, arguments in CALLS:
            result = await client.call_tool(name, arguments)
            results.append({"error": result.is_error, "content": result.structured_content})
        push = await _pushed(client, era, updated)
        lines: list[str | None] = []

        async def shown(progress: float, total: float | None, message: str | None) -> None:
            lines.append(message)
            gate.touch()

        await client.call_tool("box_exec", _talking(gate), progress_callback=shown)
        await _cancel(client)
        content = (await client.read_resource("svc://fleet")).contents[0]
        boxes = len(json.loads(getattr(content, "text", "{}"))["boxes"])
    done = {"tools": tools, "results": results, "push": push, "progress": lines}
    return done | {"ended": None, "boxes": boxes}


async def _pushed(client: Client, era: str, updated: asyncio.Queue[str]) -> str:
    if era == MODERN:
        async with client.listen(resource_subscriptions=["svc://fleet"]) as changes:
            await client.call_tool("box_pin", {"box": BOX})
            async for change in changes:
                return str(getattr(change, "uri", ""))
    await client.subscribe_resource("svc://fleet")
    await client.call_tool("box_pin", {"box": BOX})
    return await updated.get()


async def _cancel(client: Client) -> None:
    """Wants no answer any more as soon as it has begun."""
    with anyio.CancelScope() as scope:

        async def shown(progress: float, total: float | None, message: str | None) -> None:
            scope.cancel()

        await client.call_tool("box_exec", ENDLESS, progress_callback=shown)
    assert scope.cancelled_caught


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ["legacy", MODERN])
async def test_python_by_http(web: Web, era: str, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {web.key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        client = streamable_http_client(f"{web.url}/v1/mcp", http_client=http)
        _check(await _python(client, era, tmp_path / "gate"))
    await until(lambda: not web.lifecycle.attachments.held())


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ["legacy", MODERN])
async def test_python_by_ssh(front_door: Entrance, era: str, tmp_path: Path) -> None:
    program, *words = front_door.client.ssh("cli", "-T", "mcp")
    parameters = StdioServerParameters(command=program, args=words)
    with (tmp_path / "stderr").open("w") as errors:
        client = stdio_client(parameters, errors)
        _check(await _python(client, era, tmp_path / "gate"), drives=False)
    assert (tmp_path / "stderr").read_text() == ""
    await until(lambda: not front_door.lifecycle.attachments.held())


def _plan(path: Path, **more: object) -> Path:
    gate = path.with_name("gate")
    plan = {"calls": CALLS, "box": BOX, "endless": ENDLESS, "talking": _talking(gate), **more}
    plan["gate"] = str(gate)
    path.write_text(json.dumps(plan))
    return path


async def _driven(
    *command: str, stdin: TextIO | None = None, cwd: Path = FETCHED, plan: str = ""
) -> dict[str, Any]:
    program = await asyncio.create_subprocess_exec(
        *command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={"PLAN": plan, "PATH": "/usr/bin:/bin"},
    )
    async with asyncio.timeout(PATIENCE_S):
        stdout, stderr = await program.communicate()
    assert program.returncode == 0, stderr.decode()
    found: dict[str, Any] = json.loads(stdout)
    return found


async def test_python_by_websocket(web: Web, tmp_path: Path) -> None:
    url = f"ws://{web.address}/v1/mcp?key={web.key}"
    plan = _plan(tmp_path / "plan", url=url)
    python = str(FETCHED / "python/bin/python")
    _check(await _driven(python, "-I", str(HERE / "oldpython.py"), str(plan)))


async def _typescript(plan: Path) -> dict[str, Any]:
    with (HERE / "typescript.mjs").open() as program:
        return await _driven(
            *("node", "--input-type=module", "-"),
            stdin=program,
            cwd=FETCHED / "node",
            plan=str(plan),
        )


@pytest.mark.parametrize(
    ("sdk", "era", "door"),
    [(1, "legacy", "http"), (1, "legacy", "socket"), (2, "legacy", "http"), (2, MODERN, "http")],
)
async def test_typescript(web: Web, tmp_path: Path, sdk: int, era: str, door: str) -> None:
    url = f"{web.url}/v1/mcp"
    if door == "socket":
        url = f"ws://{web.address}/v1/mcp?key={web.key}"
    plan = _plan(tmp_path / "plan", sdk=sdk, era=era, door=door, url=url, key=web.key)
    _check(await _typescript(plan))
    await until(lambda: not web.lifecycle.attachments.held())


@pytest.mark.parametrize("era", ["legacy", MODERN])
async def test_typescript_by_ssh(front_door: Entrance, tmp_path: Path, era: str) -> None:
    command = front_door.client.ssh("cli", "-T", "mcp")
    plan = _plan(tmp_path / "plan", sdk=2, era=era, door="stdio", command=command)
    _check(await _typescript(plan), drives=False)
    await until(lambda: not front_door.lifecycle.attachments.held())
