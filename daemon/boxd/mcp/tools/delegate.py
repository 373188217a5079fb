"""`delegate`: a task in a box, done by a shell command or by the owner's own agent program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from boxd.boxes.commands.exec import MAX_TIMEOUT_S
from boxd.mcp.tools.commands import COMMAND, RESULT, texts
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import STRING
from boxd.mcp.tools.tool import Call, Tool
from boxd.model.delegated import TIMEOUT_S, Task

if TYPE_CHECKING:
    from boxd.model.delegated import Delegated

_GIVEN = {param.name: param for param in COMMAND}


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
    done = await call.operations.delegations.delegate(
        call.principal, task, on_line=call.tell, reserve=call.reserve
    )
    return _json(done)


def _json(done: Delegated) -> dict[str, Any]:
    """What an agent said is text; of a command both streams are told as `box_exec` does."""
    if done.text is None:
        said = texts(done.stdout, done.stderr)
    else:
        said = {"text": done.text, "stderr": done.stderr.decode("utf-8", "replace")}
    return {
        "box": done.box,
        "exit_code": done.exit_code,
        **said,
        "duration_ms": done.duration_ms,
        "truncated": done.truncated,
    }


TOOLS = (
    Tool(
        "delegate",
        "Run a task in a box",
        "Does a task in a box: runs it as a shell command, or with `agent` gives it to the agent "
        "program that the owner has configured. A new box goes when it is done.",
        _delegate,
        (
            Param("prompt", "string", "the command, or what the agent reads", required=True),
            Param("agent", "boolean", "give it to the owner's agent", default=False),
            Param("box", "string", "a box that is there; left out: a new one of `spec`"),
            Param("spec", "string", "of the new box; left out: one without a name"),
            _GIVEN["env"],
            replace(_GIVEN["timeout_s"], default=TIMEOUT_S, maximum=MAX_TIMEOUT_S),
            _GIVEN["max_output"],
            Param("keep", "boolean", "let the new box stay", default=False),
        ),
        {"box": STRING, "text": STRING, **RESULT},
        frozenset({"text", "stdout", "encoding"}),
        destroys=True,
        outside=True,
    ),
)
