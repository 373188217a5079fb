"""`pin` and `unpin`: keep a box awake without attachments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.boxes.lifecycle.pins import DEFAULT_PIN
from boxd.names.duration import format_duration, parse_duration
from boxd.ssh.cli.box_row import box_json
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse

    from boxd.operations import BoxView


def _pin_arguments(parser: argparse.ArgumentParser) -> None:
    _ref_arguments(parser)
    parser.add_argument("--for", dest="span", metavar="TIME", default=format_duration(DEFAULT_PIN))
    parser.add_argument("--why", metavar="TEXT", default="")


def _ref_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref")


async def _pin(call: Call) -> Reply:
    args = call.args
    box = await call.operations.boxes.pin(
        call.principal, args.ref, args.ws, span=parse_duration(args.span), why=args.why
    )
    return _pin_reply(call, box)


async def _unpin(call: Call) -> Reply:
    return _pin_reply(
        call, await call.operations.boxes.unpin(call.principal, call.args.ref, call.args.ws)
    )


def _pin_reply(call: Call, box: BoxView) -> Reply:
    row = (box.ref, format_time(box.pinned_until), box.pin_why)
    return Reply(box_json(call, box), table(("NAME", "PINNED UNTIL", "WHY"), [row]))


COMMANDS = (
    Command(
        ("pin",),
        "keep a box awake (default: 2h); its deadline still applies",
        "pin web --for 8h --why training",
        _pin,
        _pin_arguments,
    ),
    Command(("unpin",), "remove the pin of a box", "unpin web", _unpin, _ref_arguments),
)
