"""`stat`: what is in use, and what there is room for."""

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
        {"what": one.what, "used": one.used, "limit": one.limit, "unit": one.unit or None}
        for one in levels
    ]
    return Reply(document, table(COLUMNS, [_row(one) for one in levels]))


def _row(one: Level) -> tuple[object, ...]:
    unit = f" {one.unit}" if one.unit else ""
    if isinstance(one.used, bool):
        return one.what, "yes" if one.used else "no", None
    return (
        one.what,
        f"{one.used:g}{unit}",
        None if one.limit is None else f"{one.limit:g}{unit}",
    )


COMMANDS = (Command(("stat",), "show what is in use on this host", "stat", _run),)
