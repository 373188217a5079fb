"""`box_exec`: one command in a box."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.boxes.commands.exec import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, ExecRequest, running
from boxd.boxes.commands.output import SHOWN_LINE, Kept, Lines, last_shown
from boxd.boxes.state.requests import BoxAccess
from boxd.mcp.tools.boxes import REF
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENCODING, INTEGER, STRING, encode, in_base64
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.delegated import MAX_OUTPUT, OUTPUT

if TYPE_CHECKING:
    from boxd.boxes.commands.exec import ExecRun
    from boxd.boxes.limits.budgets.output import Room


async def _exec(call: Call) -> dict[str, Any]:
    request = ExecRequest.checked(call.args["cmd"], call.args["env"], call.args["timeout_s"])
    stdin = call.args["stdin"].encode("utf-8")
    access = BoxAccess(call.args["box"], kind="reference", why="mcp")
    attach = call.operations.boxes.attach(call.principal, access, call.progress())
    with call.operations.output.room(call.principal.owner) as room:
        async with attach as held:
            started = time.monotonic()
            async with running(held.tunnel, request, held.env, held.oom) as run:
                ended = await collected(run, stdin, call, room, started)
        return await answer(call, ended)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    stdout: Kept
    stderr: Kept
    duration_ms: int


async def collected(run: ExecRun, stdin: bytes, call: Call, room: Room, started: float) -> Ended:
    """Runs a command to its end; its output as `max_output`, and the owner's room, let it be
    kept."""
    limit = call.args["max_output"]
    kept = {name: Kept(limit, room.part()) for name in ("stdout", "stderr")}
    lines = {"stdout": Lines(SHOWN_LINE), "stderr": Lines(SHOWN_LINE)}

    async def keep(stream: str, data: bytes) -> None:
        kept[stream].add(data)
        if shown := last_shown(lines[stream].add(data)):
            call.tell(shown)

    feed = asyncio.create_task(_feed(run, stdin), name="mcp exec input")
    try:
        code = await run.pump(keep)
    finally:
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
    duration_ms = round((time.monotonic() - started) * 1000)
    return Ended(code, kept["stdout"], kept["stderr"], duration_ms)


async def answer(call: Call, ended: Ended) -> dict[str, Any]:
    """What is told of it. For its making the owner's turn is awaited here, not while the command
    runs, which may take hours."""
    await call.reserve(ended.stdout.size + ended.stderr.size)
    return {
        "exit_code": ended.code,
        **texts(ended.stdout.whole(), ended.stderr.whole()),
        "duration_ms": ended.duration_ms,
        "truncated": bool(ended.stdout.left_out or ended.stderr.left_out),
    }


def texts(stdout: bytes, stderr: bytes) -> dict[str, str]:
    """Two streams in one encoding."""
    out, out_encoding = encode(stdout)
    err, err_encoding = encode(stderr)
    if out_encoding == err_encoding == "utf-8":
        return {"stdout": out, "stderr": err, "encoding": "utf-8"}
    return {"stdout": in_base64(stdout), "stderr": in_base64(stderr), "encoding": "base64"}


async def _feed(run: ExecRun, stdin: bytes) -> None:
    if stdin:
        await run.write(stdin)
    run.write_eof()


COMMAND = (
    Param("env", "environment", "variables for the command, above those of the box"),
    Param("stdin", "string", "what it reads", default=""),
    Param(
        "timeout_s",
        "integer",
        "seconds after which it is ended, with exit code 124",
        default=DEFAULT_TIMEOUT_S,
        minimum=1,
        maximum=MAX_TIMEOUT_S,
    ),
    Param(
        "max_output",
        "integer",
        "bytes of each stream that are kept: its head and its tail",
        default=OUTPUT,
        minimum=0,
        maximum=MAX_OUTPUT,
    ),
)
RESULT = {
    "exit_code": INTEGER,
    "stdout": STRING,
    "stderr": STRING,
    "encoding": ENCODING,
    "duration_ms": INTEGER,
    "truncated": BOOLEAN,
}

TOOLS = (
    Tool(
        "box_exec",
        "Run a command in a box",
        "Runs a shell command in a box that is there, waking it if it sleeps. Shows the last line "
        "of output as progress. Never makes a box: see box_spawn.",
        _exec,
        (REF, Param("cmd", "string", "for the login shell", required=True), *COMMAND),
        RESULT,
        destroys=True,
        outside=True,
    ),
)
