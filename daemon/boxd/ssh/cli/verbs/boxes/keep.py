"""`keep`: make boxes durable, so that the service does not remove them for being unused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.ssh.cli.box_row import box_json, removal
from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.view import BoxView


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref", nargs="+")
    parser.add_argument("--off", action="store_true")


async def _run(call: Call) -> Reply:
    """Keep each box; a failure does not stop the others."""
    args = call.args
    boxes: list[BoxView] = []
    failures = []
    for ref in args.ref:
        try:
            boxes.append(
                await call.operations.boxes.keep(call.principal, ref, args.ws, durable=not args.off)
            )
        except BoxdError as error:
            failures.append(str(error))
    rows = [(box.ref, "yes" if box.durable else "no", removal(call, box)) for box in boxes]
    return Reply(
        [box_json(call, box) for box in boxes],
        table(("NAME", "DURABLE", "REMOVAL"), rows) if rows else "",
        [_deadline_note(box) for box in boxes if box.durable and box.deadline is not None],
        tuple(failures),
    )


def _deadline_note(box: BoxView) -> str:
    return f"box {box.ref} will still be removed at its deadline, {format_time(box.deadline)}"


COMMANDS = (
    Command(
        ("keep",),
        "make boxes durable: they are not removed for being unused; --off undoes that",
        "keep web",
        _run,
        _arguments,
    ),
)
