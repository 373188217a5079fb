"""`ls`: the boxes of all owners, or of one."""

from __future__ import annotations

from boxd.frontdoor.commands.boxrow import COLUMNS, box_row
from boxd.frontdoor.commands.command import Call, Command, Reply
from boxd.frontdoor.commands.sudo.arguments import of_owner
from boxd.frontdoor.commands.table import table


async def _run(call: Call) -> Reply:
    boxes = await call.operations.fleet_boxes(call.principal, call.args.owner)
    rows = [(one.owner, *box_row(call, one.box)) for one in boxes]
    return Reply([one.to_json() for one in boxes], table(("OWNER", *COLUMNS), rows))


COMMANDS = (Command(("ls",), "list the boxes of everybody", "ls", _run, of_owner),)
