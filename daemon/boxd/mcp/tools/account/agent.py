"""`agent_*`: the program that runs the tasks of an owner. No tool returns its token."""

from __future__ import annotations

from typing import Any

from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, STRING
from boxd.mcp.tools.tool import Call, Tool
from boxd.secret import Secret

_AGENT = {"cmd": STRING, "env": STRING, "format": STRING, "updated": STRING}


async def _show(call: Call) -> dict[str, Any]:
    agent = await call.operations.agents.show_agent(call.principal)
    return agent.to_json()


async def _set(call: Call) -> dict[str, Any]:
    agent = await call.operations.agents.set_agent(
        call.principal,
        command=call.args["cmd"],
        env=call.args["env"],
        output=call.args["format"],
        token=Secret(call.args["token"]),
    )
    return agent.to_json()


async def _remove(call: Call) -> dict[str, Any]:
    await call.operations.agents.remove_agent(call.principal)
    return {"removed": True}


TOOLS = (
    Tool(
        "agent_show",
        "Show the agent",
        "Show the program that `delegate` runs with `agent`, without its token.",
        _show,
        result=_AGENT,
        read_only=True,
    ),
    Tool(
        "agent_set",
        "Set the agent",
        "Set the program that `delegate` runs with `agent`, and its token.",
        _set,
        (
            Param("cmd", "string", "the command; it reads the task on standard input", True),
            Param("env", "string", "the variable that has the token", required=True),
            Param("token", "string", "the token; no tool returns it", required=True),
            Param(
                "format",
                "string",
                "the format of the standard output",
                default="text",
                choices=("text", "jsonl"),
            ),
        ),
        _AGENT,
        destructive=True,
        idempotent=True,
    ),
    Tool(
        "agent_rm",
        "Remove the agent",
        "Remove the program and its token.",
        _remove,
        result={"removed": BOOLEAN},
        destructive=True,
    ),
)
