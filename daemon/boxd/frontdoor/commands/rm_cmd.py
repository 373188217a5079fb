"""`rm`: destroys boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.frontdoor.commands.command import SHORT_ID, Call, Command, Reply, workspace_option

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("ref", nargs="+")


async def _run(call: Call) -> Reply:
    """Every reference is tried; those that are refused do not keep the others."""
    removed, failures = [], []
    for ref in call.args.ref:
        try:
            removed.append(await call.operations.remove(call.principal, ref, call.args.ws))
        except BoxdError as error:
            failures.append(str(error))
    text = "".join(f"removed {box.ref} {box.id[:SHORT_ID]}\n" for box in removed)
    return Reply([{"removed": box.id} for box in removed], text, failures=tuple(failures))


COMMANDS = (Command(("rm",), "destroy boxes with all that is in them", "rm web", _run, _arguments),)
