"""`agent`: the program that works on your tasks in boxes. Its token comes on standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import format_time, table
from boxd.ssh.cli.verbs.account.secret import value_on_stdin

if TYPE_CHECKING:
    import argparse

    from boxd.model.secret import Agent


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cmd", metavar="CMD", required=True)
    parser.add_argument("--env", metavar="NAME", required=True)
    parser.add_argument("--format", metavar="text|jsonl", default="text")


async def _set(call: Call) -> Reply:
    args = call.args
    agent = await call.operations.agents.set_agent(
        call.principal,
        command=args.cmd,
        env=args.env,
        output=args.format,
        token=await value_on_stdin(call, "token"),
    )
    return _agent_reply(agent)


async def _show(call: Call) -> Reply:
    return _agent_reply(await call.operations.agents.show_agent(call.principal))


async def _rm(call: Call) -> Reply:
    agent = await call.operations.agents.remove_agent(call.principal)
    return Reply({"removed": agent.command}, "removed the agent and its token\n")


def _agent_reply(agent: Agent) -> Reply:
    row = (agent.command, agent.env, agent.format, format_time(agent.updated))
    return Reply(agent.to_json(), table(("CMD", "ENV", "FORMAT", "UPDATED"), [row]))


COMMANDS = (
    Command(
        ("agent", "set"),
        "choose the program for your tasks, and read its token from standard input",
        "agent set --cmd \"'my-agent --print'\" --env AGENT_TOKEN < token.txt",
        _set,
        _set_arguments,
    ),
    Command(("agent", "show"), "show the program, without its token", "agent show", _show),
    Command(("agent", "rm"), "remove the program and its token", "agent rm", _rm),
)
