"""`ls`: the boxes of the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.presence.removal_notices import unused_boxes
from boxd.ssh.cli.box_row import box_json, boxes_table
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.removal_lines import list_note

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("--wide", action="store_true")


async def _run(call: Call) -> Reply:
    ws = call.args.ws
    boxes = await call.operations.boxes.list_boxes(call.principal, ws, everywhere=ws is None)
    unused = [] if call.args.json else unused_boxes(boxes, call.now)
    return Reply(
        [box_json(call, box) for box in boxes],
        boxes_table(call, boxes, wide=call.args.wide),
        [list_note(call.endpoint, unused)] if unused else (),
    )


COMMANDS = (Command(("ls",), "list your boxes", "ls --wide", _run, _arguments),)
