"""`block` and `unblock`: who gets in at all."""

from __future__ import annotations

from boxd.ssh.admin.arguments import owner
from boxd.ssh.cli.command import Call, Command, Reply


async def _block(call: Call) -> Reply:
    ended = await call.operations.owners.fleet_block(call.principal, call.args.owner)
    text = f"{call.args.owner} is blocked; ended {ended}\n"
    note = "its boxes are there still, and age as all boxes do"
    return Reply({"owner": call.args.owner, "blocked": True, "ended": ended}, text, [note])


async def _unblock(call: Call) -> Reply:
    await call.operations.owners.fleet_unblock(call.principal, call.args.owner)
    text = f"{call.args.owner} is not blocked\n"
    return Reply({"owner": call.args.owner, "blocked": False}, text)


COMMANDS = (
    Command(("block",), "keep an owner out, over SSH and HTTP", "block SHA256:...", _block, owner),
    Command(("unblock",), "let an owner in again", "unblock SHA256:...", _unblock, owner),
)
