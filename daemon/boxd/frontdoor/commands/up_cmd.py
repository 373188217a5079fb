"""`up`: a box that runs, without attaching to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.frontdoor.commands.boxrow import box_json, boxes_table
from boxd.frontdoor.commands.command import Call, Command, Reply, workspace_option

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("spec")


async def _run(call: Call) -> Reply:
    box = await call.operations.up(call.principal, call.args.spec, call.args.ws)
    return Reply(box_json(call, box), boxes_table(call, [box]))


COMMANDS = (
    Command(("up",), "create a box or start it", "up 'web:debian:small^2h'", _run, _arguments),
)
