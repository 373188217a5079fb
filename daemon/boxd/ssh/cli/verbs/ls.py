"""`ls`: the boxes of the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.box_row import box_json, boxes_table
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("--wide", action="store_true")


async def _run(call: Call) -> Reply:
    ws = call.args.ws
    boxes = await call.operations.boxes.list_boxes(call.principal, ws, everywhere=ws is None)
    return Reply(
        [box_json(call, box) for box in boxes], boxes_table(call, boxes, wide=call.args.wide)
    )


COMMANDS = (Command(("ls",), "list your boxes", "ls --wide", _run, _arguments),)
