"""`rm`: destroys boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BoxdError, Pinned
from boxd.ssh.cli.command import SHORT_ID, Call, Command, Reply, workspace_option
from boxd.ssh.cli.prompt import confirm

if TYPE_CHECKING:
    import argparse

    from boxd.model.view import BoxView


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref", nargs="+")
    parser.add_argument("--force", action="store_true")


async def _run(call: Call) -> Reply:
    """Remove each box; a failure does not stop the others."""
    removed, failures = [], []
    for ref in call.args.ref:
        try:
            removed.append(await _remove(call, ref))
        except BoxdError as error:
            failures.append(str(error))
    text = "".join(f"removed {box.ref} {box.id[:SHORT_ID]}\n" for box in removed)
    return Reply([{"removed": box.id} for box in removed], text, failures=tuple(failures))


async def _remove(call: Call, ref: str) -> BoxView:
    """Remove a box; a pinned one needs `--force`, or a confirmation at a terminal."""
    args = call.args
    try:
        return await call.operations.boxes.remove(call.principal, ref, args.ws, force=args.force)
    except Pinned as error:
        if args.json or not call.stdio.terminal:
            remedy = f"To remove it: rm --force {ref}. To remove the pin: unpin {ref}"
            raise Pinned(error.fact, remedy) from None
        if not await confirm(call.stdio, f"{error.fact}. Remove it?", "box"):
            raise Pinned(error.fact, "It was not removed") from None
    return await call.operations.boxes.remove(call.principal, ref, args.ws, force=True)


COMMANDS = (
    Command(
        ("rm",),
        "destroy boxes and their disks; --force: even pinned boxes",
        "rm web",
        _run,
        _arguments,
    ),
)
