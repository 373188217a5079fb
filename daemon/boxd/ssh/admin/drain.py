"""`drain`: accept no new work, so that the host becomes idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cancel", action="store_true")


async def _run(call: Call) -> Reply:
    cancel: bool = call.args.cancel
    call.operations.fleet.fleet_drain(call.principal, cancel=cancel)
    if cancel:
        return Reply({"draining": False}, "new work is accepted again\n")
    note = "until drain --cancel, or until the service restarts"
    return Reply({"draining": True}, "no new boxes, sessions or commands are accepted\n", [note])


COMMANDS = (
    Command(
        ("drain",),
        "accept no new boxes, sessions or commands; running ones continue",
        "drain",
        _run,
        _arguments,
    ),
)
