"""`block` and `unblock`: deny an owner access, or allow it again."""

from __future__ import annotations

from boxd.ssh.admin.arguments import owner_argument
from boxd.ssh.cli.command import Call, Command, Reply


async def _block(call: Call) -> Reply:
    ended = await call.operations.owners.fleet_block(call.principal, call.args.owner)
    text = f"{call.args.owner} is blocked; ended {ended} attachments\n"
    note = "its boxes stay and expire as usual"
    return Reply({"owner": call.args.owner, "blocked": True, "ended": ended}, text, [note])


async def _unblock(call: Call) -> Reply:
    await call.operations.owners.fleet_unblock(call.principal, call.args.owner)
    text = f"{call.args.owner} is not blocked\n"
    return Reply({"owner": call.args.owner, "blocked": False}, text)


COMMANDS = (
    Command(
        ("block",),
        "deny an owner all access, over SSH and HTTP",
        "block SHA256:...",
        _block,
        owner_argument,
    ),
    Command(
        ("unblock",), "allow an owner access again", "unblock SHA256:...", _unblock, owner_argument
    ),
)
