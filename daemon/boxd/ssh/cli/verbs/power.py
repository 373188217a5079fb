"""`suspend` and `resume`: the memory of a box goes to the disk and comes back."""

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
    return _told(
        call, await call.operations.boxes.suspend(call.principal, call.args.ref, call.args.ws)
    )


async def _resume(call: Call) -> Reply:
    return _told(
        call, await call.operations.boxes.resume(call.principal, call.args.ref, call.args.ws)
    )


def _told(call: Call, box: BoxView) -> Reply:
    """What came of it; a box that had to start from its disk says so on stderr."""
    notes = [f"box {box.ref} {box.detail}"] if box.detail else []
    return Reply(box_json(call, box), table(("NAME", "STATE"), [(box.ref, box.state)]), notes)


COMMANDS = (
    Command(
        ("suspend",), "put a box to sleep with its memory", "suspend web", _suspend, _arguments
    ),
    Command(("resume",), "wake a box without connecting to it", "resume web", _resume, _arguments),
)
