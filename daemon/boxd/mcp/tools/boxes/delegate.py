"""`delegate`: run a task in a box, as a shell command or with the owner's agent program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from boxd.boxes.commands.exec import MAX_TIMEOUT_S
from boxd.mcp.tools.boxes.commands import COMMAND, RESULT, encode_streams
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import STRING
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.delegated import TIMEOUT_S, Task

if TYPE_CHECKING:
    from boxd.model.delegated import Delegated

_COMMAND_PARAMS = {param.name: param for param in COMMAND}


async def _delegate(call: Call) -> dict[str, Any]:
    task = Task(
        prompt=call.args["prompt"],
        agent=call.args["agent"],
        box=call.args["box"],
        spec=call.args["spec"],
        env=call.args["env"] or {},
        timeout_s=call.args["timeout_s"],
        max_output=call.args["max_output"],
        keep=call.args["keep"],
    )
    outcome = await call.operations.delegations.delegate(
        call.principal, task, on_line=call.report_progress, reserve=call.reserve
    )
    return _json(outcome)


def _json(outcome: Delegated) -> dict[str, Any]:
    """Return the text and stderr of an agent, or both streams of a command, as `box_exec` does."""
    if outcome.text is None:
        output = encode_streams(outcome.stdout, outcome.stderr)
    else:
        output = {"text": outcome.text, "stderr": outcome.stderr.decode("utf-8", "replace")}
    return {
        "box": outcome.box,
        "exit_code": outcome.exit_code,
        **output,
        "duration_ms": outcome.duration_ms,
        "truncated": outcome.truncated,
    }


TOOLS = (
    Tool(
        "delegate",
        "Run a task in a box",
        "Run a task in a box as a shell command, or with `agent` by the agent program that the "
        "owner configured. A box that is created for the task is removed afterwards, unless `keep` "
        "is set.",
        _delegate,
        (
            Param("prompt", "string", "the command, or the prompt for the agent", required=True),
            Param("agent", "boolean", "run the task with the owner's agent program", default=False),
            Param("box", "string", "an existing box (default: a new box from `spec`)"),
            Param("spec", "string", "the spec of the new box (default: a box without a name)"),
            _COMMAND_PARAMS["env"],
            replace(_COMMAND_PARAMS["timeout_s"], default=TIMEOUT_S, maximum=MAX_TIMEOUT_S),
            _COMMAND_PARAMS["max_output"],
            Param("keep", "boolean", "keep the new box after the task", default=False),
        ),
        {"box": STRING, "text": STRING, **RESULT},
        frozenset({"text", "stdout", "encoding"}),
        destructive=True,
        open_world=True,
    ),
)
