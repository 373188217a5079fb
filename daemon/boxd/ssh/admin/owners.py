"""`owners`: all owners with a box, a drive or an account record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import format_size, format_time, table

if TYPE_CHECKING:
    from boxd.model.fleet import OwnerView

COLUMNS = ("OWNER", "TIER", "BOXES", "RUNNING", "BYTES", "LAST SEEN", "BLOCKED", "NAME")


async def _run(call: Call) -> Reply:
    owners = await call.operations.owners.fleet_owners(call.principal)
    return Reply(
        [owner.to_json() for owner in owners], table(COLUMNS, [_row(owner) for owner in owners])
    )


def _row(owner: OwnerView) -> tuple[object, ...]:
    return (
        owner.owner,
        owner.tier,
        owner.boxes,
        owner.running,
        format_size(owner.bytes),
        format_time(owner.last_seen),
        format_time(owner.blocked),
        owner.name,
    )


COMMANDS = (Command(("owners",), "list all owners", "owners", _run),)
