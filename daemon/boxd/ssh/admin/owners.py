"""`owners`: everybody who has something here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import moment, size, table

if TYPE_CHECKING:
    from boxd.model.fleet import OwnerView

COLUMNS = ("OWNER", "TIER", "BOXES", "RUNNING", "BYTES", "LAST SEEN", "BLOCKED")


async def _run(call: Call) -> Reply:
    owners = await call.operations.owners.fleet_owners(call.principal)
    return Reply([one.to_json() for one in owners], table(COLUMNS, [_row(one) for one in owners]))


def _row(one: OwnerView) -> tuple[object, ...]:
    return (
        one.owner,
        one.tier,
        one.boxes,
        one.running,
        size(one.bytes),
        moment(one.last_seen),
        moment(one.blocked),
    )


COMMANDS = (Command(("owners",), "list everybody who has something here", "owners", _run),)
