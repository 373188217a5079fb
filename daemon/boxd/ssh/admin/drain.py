"""`drain`: no new work, so that the host empties."""

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
        return Reply({"draining": False}, "new work is taken again\n")
    note = "until drain --cancel, or until the service starts again"
    return Reply({"draining": True}, "no new boxes, sessions and commands\n", [note])


COMMANDS = (
    Command(
        ("drain",),
        "take no new boxes, sessions and commands; what runs goes on",
        "drain",
        _run,
        _arguments,
    ),
)
