"""`keys`: the SSH keys that open the account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from boxd.model.access.account_key import AccountKey

COLUMNS = ("NAME", "FINGERPRINT", "ADDED", "LAST USED")
JOINED = "this key now opens that account; connect again to use it"
"""The note after a key has joined an account."""


def key_table(keys: Sequence[AccountKey]) -> str:
    """Return the keys as a table with COLUMNS."""
    rows = [
        (key.name, key.fingerprint, format_time(key.added), format_time(key.last_used))
        for key in keys
    ]
    return table(COLUMNS, rows)


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")


def _code_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code")


def _key_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="NAME|FINGERPRINT")


async def _list(call: Call) -> Reply:
    keys = await call.operations.ssh_keys.list_keys(call.principal)
    return Reply([key.to_json() for key in keys], key_table(keys))


async def _add(call: Call) -> Reply:
    """Write only the code to stdout, so that a script can use it."""
    expires, secret = await call.operations.ssh_keys.add_key(call.principal, call.args.name)
    code = secret.reveal()
    command = call.endpoint.ssh_command("cli", "keys confirm", code)
    with_key = command.replace("ssh ", "ssh -i NEWKEY -o IdentitiesOnly=yes ", 1)
    notes = [
        f"the code is valid until {format_time(expires)}. Confirm it with the new key: {with_key}"
    ]
    document = {"name": call.args.name, "code": code, "expires": expires.isoformat()}
    return Reply(document, code + "\n", notes)


async def _confirm(call: Call) -> Reply:
    key = await call.operations.ssh_keys.confirm_key(call.principal, call.args.code)
    document = key.to_json() | {"account": key.owner}
    return Reply(document, f"{key.name} joined the account {key.owner}\n", [JOINED])


async def _remove(call: Call) -> Reply:
    key = await call.operations.ssh_keys.remove_key(call.principal, call.args.key)
    note = (
        "the key opens no account now. If it was stolen, check `keys ls` and `apikeys ls`, and "
        "replace the recovery codes: recovery create"
    )
    document = {"removed": key.name, "fingerprint": key.fingerprint}
    return Reply(document, f"removed {key.name} {key.fingerprint}\n", [note])


COMMANDS = (
    Command(("keys", "ls"), "list the SSH keys that open your account", "keys ls", _list),
    Command(
        ("keys", "add"),
        "print a code, valid for 10 minutes, with which a new SSH key joins your account",
        "keys add laptop",
        _add,
        _name_argument,
    ),
    Command(
        ("keys", "confirm"),
        "join an account with the new key that you are connected with",
        "keys confirm CODE",
        _confirm,
        _code_argument,
    ),
    Command(
        ("keys", "rm"),
        "remove an SSH key for ever and end its connections",
        "keys rm laptop",
        _remove,
        _key_argument,
    ),
)
