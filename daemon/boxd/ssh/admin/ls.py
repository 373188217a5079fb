"""`ls`: the boxes of all owners, or of one."""

from __future__ import annotations

from boxd.ssh.admin.arguments import of_owner
from boxd.ssh.cli.box_row import COLUMNS, box_row
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table


async def _run(call: Call) -> Reply:
    boxes = await call.operations.fleet.fleet_boxes(call.principal, call.args.owner)
    rows = [(one.owner, *box_row(call, one.box)) for one in boxes]
    return Reply([one.to_json() for one in boxes], table(("OWNER", *COLUMNS), rows))


COMMANDS = (Command(("ls",), "list the boxes of everybody", "ls", _run, of_owner),)
