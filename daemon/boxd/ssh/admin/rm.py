"""`rm`: destroys boxes of all owners."""

from __future__ import annotations

from boxd.errors import BoxdError
from boxd.ssh.admin.arguments import boxes_argument
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply


async def _run(call: Call) -> Reply:
    """Remove each box; a failure does not stop the others."""
    removed, failures = [], []
    for ref in call.args.box:
        try:
            removed.append(await call.operations.fleet.fleet_remove(call.principal, ref))
        except BoxdError as error:
            failures.append(str(error))
    text = "".join(f"removed {entry.box.ref} {entry.box.id[:SHORT_ID]}\n" for entry in removed)
    document = [{"removed": entry.box.id, "owner": entry.owner} for entry in removed]
    return Reply(document, text, failures=tuple(failures))


COMMANDS = (Command(("rm",), "destroy boxes and their disks", "rm 0f3a41", _run, boxes_argument),)
