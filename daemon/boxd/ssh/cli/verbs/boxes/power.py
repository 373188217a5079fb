"""`suspend` and `resume`: write the memory of a box to disk, and continue from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.box_row import box_json
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    import argparse

    from boxd.operations import BoxView


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref")


async def _suspend(call: Call) -> Reply:
    return _state_reply(
        call, await call.operations.boxes.suspend(call.principal, call.args.ref, call.args.ws)
    )


async def _resume(call: Call) -> Reply:
    return _state_reply(
        call, await call.operations.boxes.resume(call.principal, call.args.ref, call.args.ws)
    )


def _state_reply(call: Call, box: BoxView) -> Reply:
    """Return the new state of the box. A note says if it had to start from its disk."""
    notes = [f"box {box.ref} {box.detail}"] if box.detail else []
    return Reply(box_json(call, box), table(("NAME", "STATE"), [(box.ref, box.state)]), notes)


COMMANDS = (
    Command(("suspend",), "suspend a box and save its memory", "suspend web", _suspend, _arguments),
    Command(
        ("resume",), "resume a box without connecting to it", "resume web", _resume, _arguments
    ),
)
