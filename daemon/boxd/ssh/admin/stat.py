"""`stat`: use and limits of this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    from boxd.model.fleet import Level

COLUMNS = ("WHAT", "USED", "LIMIT")


async def _run(call: Call) -> Reply:
    levels = await call.operations.fleet.fleet_levels(call.principal)
    document = [
        {"what": level.what, "used": level.used, "limit": level.limit, "unit": level.unit or None}
        for level in levels
    ]
    return Reply(document, table(COLUMNS, [_row(level) for level in levels]))


def _row(level: Level) -> tuple[object, ...]:
    unit = f" {level.unit}" if level.unit else ""
    if isinstance(level.used, bool):
        return level.what, "yes" if level.used else "no", None
    return (
        level.what,
        f"{level.used:g}{unit}",
        None if level.limit is None else f"{level.limit:g}{unit}",
    )


COMMANDS = (Command(("stat",), "show use and limits of this host", "stat", _run),)
