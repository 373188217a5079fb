"""`ls`: the boxes of all owners, or of one."""

from __future__ import annotations

from boxd.ssh.admin.arguments import owner_option
from boxd.ssh.cli.box_row import COLUMNS, box_row
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table


async def _run(call: Call) -> Reply:
    entries = await call.operations.fleet.fleet_boxes(call.principal, call.args.owner)
    rows = [(entry.owner, *box_row(call, entry.box)) for entry in entries]
    return Reply([entry.to_json() for entry in entries], table(("OWNER", *COLUMNS), rows))


COMMANDS = (Command(("ls",), "list the boxes of all owners", "ls", _run, owner_option),)
