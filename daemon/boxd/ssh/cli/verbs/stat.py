"""`stat`: what is used of what there may be, of the account or of one box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import size, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from boxd.model.stat import Stat

_BYTES = "bytes"


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref", nargs="?")


async def _run(call: Call) -> Reply:
    args = call.args
    if args.ref is None:
        stats = await call.operations.stats.account_stats(call.principal)
    else:
        stats = await call.operations.stats.box_stats(call.principal, args.ref, args.ws)
    return Reply([one.to_json() for one in stats], _listed(stats))


def _listed(stats: Sequence[Stat]) -> str:
    rows = [
        (f"{one.what} {one.of}".strip(), _shown(one, one.used), _shown(one, one.limit))
        for one in stats
    ]
    return table(("WHAT", "USED", "LIMIT"), rows)


def _shown(one: Stat, value: float | None) -> object:
    if value is None:
        return None
    return size(int(value)) if one.unit == _BYTES else f"{value:g} {one.unit}".strip()


COMMANDS = (
    Command(
        ("stat",),
        "show what you use of your limits, or what a box uses of its own",
        "stat web",
        _run,
        _arguments,
    ),
)
