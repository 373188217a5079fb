"""`box_exec`: run one command in a box."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boxd.boxes.commands.exec import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, ExecRequest, running
from boxd.boxes.commands.output import SHOWN_LINE, HeadAndTail, Lines, last_shown
from boxd.boxes.state.requests import BoxAccess
from boxd.mcp.tools.boxes.boxes import REF
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENCODING, INTEGER, STRING, encode, to_base64
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
        async with attach as attachment:
            started = time.monotonic()
            command_run = running(
                attachment.tunnel,
                request,
                attachment.env,
                attachment.oom,
                observer=attachment.observer,
            )
            async with command_run as run:
                outcome = await collect(run, stdin, call, room, started)
        return await result_of(call, outcome)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code and the output of a command that has ended."""

    code: int
    stdout: HeadAndTail
    stderr: HeadAndTail
    duration_ms: int


async def collect(run: ExecRun, stdin: bytes, call: Call, room: Room, started: float) -> Outcome:
    """Run a command until it ends, and collect its output.

    `max_output` and the owner's room limit the stored output.
    """
    limit = call.args["max_output"]
    outputs = {name: HeadAndTail(limit, room.part()) for name in ("stdout", "stderr")}
    lines = {"stdout": Lines(SHOWN_LINE), "stderr": Lines(SHOWN_LINE)}

    async def store(stream: str, data: bytes) -> None:
        outputs[stream].add(data)
        if line := last_shown(lines[stream].add(data)):
            call.report_progress(line)

    feed = asyncio.create_task(_feed(run, stdin), name="mcp exec input")
    try:
        code = await run.pump(store)
    finally:
        feed.cancel()
        await asyncio.gather(feed, return_exceptions=True)
    duration_ms = round((time.monotonic() - started) * 1000)
    return Outcome(code, outputs["stdout"], outputs["stderr"], duration_ms)


async def result_of(call: Call, outcome: Outcome) -> dict[str, Any]:
    """Return the result of the tool."""
    # Reserve room after the command has ended: the command may run for hours.
    await call.reserve(outcome.stdout.size + outcome.stderr.size)
    return {
        "exit_code": outcome.code,
        **encode_streams(outcome.stdout.whole(), outcome.stderr.whole()),
        "duration_ms": outcome.duration_ms,
        "truncated": bool(outcome.stdout.left_out or outcome.stderr.left_out),
    }


def encode_streams(stdout: bytes, stderr: bytes) -> dict[str, str]:
    """Encode both streams in the same encoding."""
    out, out_encoding = encode(stdout)
    err, err_encoding = encode(stderr)
    if out_encoding == err_encoding == "utf-8":
        return {"stdout": out, "stderr": err, "encoding": "utf-8"}
    return {"stdout": to_base64(stdout), "stderr": to_base64(stderr), "encoding": "base64"}


async def _feed(run: ExecRun, stdin: bytes) -> None:
    if stdin:
        await run.write(stdin)
    run.write_eof()


COMMAND = (
    Param(
        "env", "environment", "environment variables of the command; they override those of the box"
    ),
    Param("stdin", "string", "the standard input of the command", default=""),
    Param(
        "timeout_s",
        "integer",
        "stop the command after this many seconds; its exit code is then 124",
        default=DEFAULT_TIMEOUT_S,
        minimum=1,
        maximum=MAX_TIMEOUT_S,
    ),
    Param(
        "max_output",
        "integer",
        "bytes of each stream that are returned: the beginning and the end of the output",
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
        "Run a shell command in an existing box. A suspended box resumes first. The last line of "
        "output is sent as progress. To create a box, call box_spawn.",
        _exec,
        (REF, Param("cmd", "string", "the command, for the login shell", required=True), *COMMAND),
        RESULT,
        destructive=True,
        open_world=True,
    ),
)
