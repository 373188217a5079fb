"""A secret gets another value: the next session has it, through whichever door it comes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from boxd.boxes.commands.exec import ExecRequest, running
from boxd.boxes.state.requests import BoxAccess
from boxd.model.delegated import Task
from boxd.secret import Secret
from tests.harness.http.mcp import talk
from tests.harness.http.web import ALICE

if TYPE_CHECKING:
    from boxd.model.secret import Tier
    from tests.harness.http.web import Web

COMMAND = 'echo "[$TOKEN]"'


async def seen(web: Web, box: str) -> set[str]:
    """What commands in a box see of it, by HTTP, by MCP and delegated."""
    answer = await web.client().post(
        f"/v1/exec/{box}?stream=false", content=COMMAND, headers={"content-type": "text/plain"}
    )
    async with talk(web) as client:
        called = (await client.call("box_exec", box=box, cmd=COMMAND))["stdout"]
    done = await web.operations.delegations.delegate(ALICE, Task(COMMAND, box=box))
    return {base64.b64decode(answer.json()["stdout"]).decode(), called, done.stdout.decode()}


async def keep(web: Web, value: str, tier: Tier, ws: str | None = None) -> None:
    await web.operations.secrets.set_secret(ALICE, "TOKEN", Secret(value), tier=tier, ws=ws)


async def test_the_next_session_sees_it_and_what_runs_keeps_the_old_one(web: Web) -> None:
    ops = web.operations
    await keep(web, "one", "account")
    await ops.boxes.up(ALICE, "ws1/dev")
    said = bytearray()

    async def hear(_stream: str, data: bytes) -> None:
        said.extend(data)

    async with (
        ops.boxes.attach(ALICE, BoxAccess("ws1/dev", kind="reference", why="exec")) as held,
        running(held.tunnel, ExecRequest(f"read x; {COMMAND}"), held.env) as run,
    ):
        assert await seen(web, "ws1/dev") == {"[one]\n"}
        await keep(web, "two", "account")
        assert await seen(web, "ws1/dev") == {"[two]\n"}
        await keep(web, "three", "workspace", "ws1")
        assert await seen(web, "ws1/dev") == {"[three]\n"}
        await ops.secrets.remove_secret(ALICE, "TOKEN", tier="workspace", ws="ws1")
        assert await seen(web, "ws1/dev") == {"[two]\n"}
        await run.write(b"\n")
        assert await run.pump(hear) == 0
    assert said == b"[one]\n"
    await ops.secrets.remove_secret(ALICE, "TOKEN", tier="account")
    assert await seen(web, "ws1/dev") == {"[]\n"}


async def test_another_workspace_has_its_own(web: Web) -> None:
    ops = web.operations
    await ops.boxes.up(ALICE, "dev")
    await ops.boxes.up(ALICE, "ws1/dev")
    await keep(web, "of ws1", "workspace", "ws1")
    assert await seen(web, "ws1/dev") == {"[of ws1]\n"}
    assert await seen(web, "dev") == {"[]\n"}
    await keep(web, "of the default one", "workspace")
    assert await seen(web, "ws1/dev") == {"[of ws1]\n"}
    assert await seen(web, "dev") == {"[of the default one]\n"}
