"""`suspend` and `resume` for boxes of all owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.admin.arguments import box_argument
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table

if TYPE_CHECKING:
    from boxd.model.fleet import FleetBox


async def _suspend(call: Call) -> Reply:
    return _state_reply(await call.operations.fleet.fleet_suspend(call.principal, call.args.box))


async def _resume(call: Call) -> Reply:
    return _state_reply(await call.operations.fleet.fleet_resume(call.principal, call.args.box))


def _state_reply(entry: FleetBox) -> Reply:
    """Return the new state of the box. A note says if it had to start from its disk."""
    notes = [f"box {entry.box.ref} {entry.box.detail}"] if entry.box.detail else []
    row = (entry.owner, entry.box.ref, entry.box.state)
    return Reply(entry.to_json(), table(("OWNER", "NAME", "STATE"), [row]), notes)


COMMANDS = (
    Command(
        ("suspend",), "suspend a box and save its memory", "suspend 0f3a41", _suspend, box_argument
    ),
    Command(("resume",), "resume a box", "resume 0f3a41", _resume, box_argument),
)
