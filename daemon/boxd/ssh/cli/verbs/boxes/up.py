"""`up`: create or start a box without attaching to it."""

from __future__ import annotations

import argparse

from boxd.model.progress import Progress
from boxd.ssh.cli.box_row import box_json, boxes_table
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("--durable", action=argparse.BooleanOptionalAction)
    parser.add_argument("--no-wait", action="store_true")
    parser.add_argument("spec")


async def _run(call: Call) -> Reply:
    args = call.args
    notes: list[str] = []
    box = await call.operations.boxes.up(
        call.principal,
        args.spec,
        args.ws,
        durable=args.durable,
        wait=not args.no_wait,
        progress=Progress(notes.append),
    )
    return Reply(box_json(call, box), boxes_table(call, [box]), notes)


COMMANDS = (
    Command(
        ("up",),
        "create or start a box; --durable: keep it even if it is unused",
        "up 'web:debian:small^2h'",
        _run,
        _arguments,
    ),
)
