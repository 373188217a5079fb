"""`stat`: use and limits of the account, or of one box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply, workspace_option
from boxd.ssh.cli.table import format_size, table

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
    return Reply([stat.to_json() for stat in stats], _table(stats))


def _table(stats: Sequence[Stat]) -> str:
    rows = [
        (f"{stat.what} {stat.of}".strip(), _value(stat, stat.used), _value(stat, stat.limit))
        for stat in stats
    ]
    return table(("WHAT", "USED", "LIMIT"), rows)


def _value(stat: Stat, value: float | None) -> object:
    if value is None:
        return None
    return format_size(int(value)) if stat.unit == _BYTES else f"{value:g} {stat.unit}".strip()


COMMANDS = (
    Command(
        ("stat",),
        "show your use and your limits, or those of a box",
        "stat web",
        _run,
        _arguments,
    ),
)
