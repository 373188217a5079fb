"""`rm`: destroys boxes of anybody."""

from __future__ import annotations

from boxd.errors import BoxdError
from boxd.ssh.admin.arguments import boxes
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply


async def _run(call: Call) -> Reply:
    """Every reference is tried; those that are refused do not keep the others."""
    removed, failures = [], []
    for ref in call.args.box:
        try:
            removed.append(await call.operations.fleet.fleet_remove(call.principal, ref))
        except BoxdError as error:
            failures.append(str(error))
    text = "".join(f"removed {one.box.ref} {one.box.id[:SHORT_ID]}\n" for one in removed)
    document = [{"removed": one.box.id, "owner": one.owner} for one in removed]
    return Reply(document, text, failures=tuple(failures))


COMMANDS = (Command(("rm",), "destroy boxes with all that is in them", "rm 0f3a41", _run, boxes),)
