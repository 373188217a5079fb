"""`keys`: the API keys of an owner: names and dates, never the keys themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.ssh.admin.arguments import owner_argument
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import table
from boxd.ssh.cli.verbs.account.apikeys import COLUMNS, key_row

if TYPE_CHECKING:
    import argparse


async def _list(call: Call) -> Reply:
    keys = await call.operations.owners.fleet_keys(call.principal, call.args.owner)
    return Reply([key.to_json() for key in keys], table(COLUMNS, [key_row(key) for key in keys]))


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    owner_argument(parser)
    parser.add_argument("name", nargs="+")


async def _remove(call: Call) -> Reply:
    """Remove each key; a failure does not stop the others."""
    removed, failures = [], []
    for name in call.args.name:
        try:
            await call.operations.owners.fleet_remove_key(call.principal, call.args.owner, name)
            removed.append(name)
        except BoxdError as error:
            failures.append(str(error))
    document = [{"removed": name} for name in removed]
    return Reply(document, "".join(f"removed {name}\n" for name in removed), (), tuple(failures))


COMMANDS = (
    Command(
        ("keys", "ls"), "list the API keys of an owner", "keys ls SHA256:...", _list, owner_argument
    ),
    Command(
        ("keys", "rm"),
        "revoke API keys of an owner",
        "keys rm SHA256:... laptop",
        _remove,
        _remove_arguments,
    ),
)
