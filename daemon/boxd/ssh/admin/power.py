"""`suspend` and `resume`, of anybody's boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.admin.arguments import box
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    from boxd.model.fleet import FleetBox


async def _suspend(call: Call) -> Reply:
    return _told(await call.operations.fleet.fleet_suspend(call.principal, call.args.box))


async def _resume(call: Call) -> Reply:
    return _told(await call.operations.fleet.fleet_resume(call.principal, call.args.box))


def _told(one: FleetBox) -> Reply:
    """What came of it; a box that had to start from its disk says so on stderr."""
    notes = [f"box {one.box.ref} {one.box.detail}"] if one.box.detail else []
    row = (one.owner, one.box.ref, one.box.state)
    return Reply(one.to_json(), table(("OWNER", "NAME", "STATE"), [row]), notes)


COMMANDS = (
    Command(("suspend",), "put a box to sleep with its memory", "suspend 0f3a41", _suspend, box),
    Command(("resume",), "wake a box", "resume 0f3a41", _resume, box),
)
