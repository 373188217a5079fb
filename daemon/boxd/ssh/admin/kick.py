"""`kick`: ends all that holds a box."""

from __future__ import annotations

from boxd.ssh.admin.arguments import box
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply


async def _run(call: Call) -> Reply:
    one = await call.operations.fleet.fleet_kick(call.principal, call.args.box)
    text = f"ended {one.ended} of {one.box.ref} {one.box.id[:SHORT_ID]}\n"
    return Reply({"box": one.box.id, "owner": one.owner, "ended": one.ended}, text)


COMMANDS = (
    Command(("kick",), "end sessions, forwardings and commands in a box", "kick 0f3a41", _run, box),
)
