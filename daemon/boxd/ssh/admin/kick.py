"""`kick`: end all attachments of a box."""

from __future__ import annotations

from boxd.ssh.admin.arguments import box_argument
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply


async def _run(call: Call) -> Reply:
    kick = await call.operations.fleet.fleet_kick(call.principal, call.args.box)
    text = f"ended {kick.ended} attachments of {kick.box.ref} {kick.box.id[:SHORT_ID]}\n"
    return Reply({"box": kick.box.id, "owner": kick.owner, "ended": kick.ended}, text)


COMMANDS = (
    Command(
        ("kick",),
        "end all sessions, forwardings and commands of a box",
        "kick 0f3a41",
        _run,
        box_argument,
    ),
)
