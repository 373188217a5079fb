"""`apikeys`: keys for the HTTP API. Users create them only here, over SSH."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.duration import parse_duration
from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.key import ApiKey

COLUMNS = ("NAME", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
_ACCOUNT = "account"


def key_row(key: ApiKey) -> tuple[object, ...]:
    """Return one value for each of COLUMNS."""
    return (
        key.name,
        key.scope or _ACCOUNT,
        format_time(key.created),
        format_time(key.expires),
        format_time(key.last_used),
    )


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("-w", dest="scope", metavar="WS")
    parser.add_argument("--ttl", metavar="DURATION")


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name")


async def _create(call: Call) -> Reply:
    """Write only the key to stdout, so that a script can store it."""
    ttl = None if call.args.ttl is None else parse_duration(call.args.ttl, "key ttl")
    key, secret = await call.operations.keys.create_key(
        call.principal, call.args.name, scope=call.args.scope, ttl=ttl
    )
    scope = "your whole account" if key.scope is None else f"workspace {key.scope}"
    expires = "never expires" if key.expires is None else f"expires {format_time(key.expires)}"
    note = f"key {key.name} for {scope}, {expires}; it is shown only once"
    return Reply(key.to_json() | {"key": secret.reveal()}, secret.reveal() + "\n", [note])


async def _list(call: Call) -> Reply:
    keys = await call.operations.keys.list_keys(call.principal)
    return Reply([key.to_json() for key in keys], table(COLUMNS, [key_row(key) for key in keys]))


async def _remove(call: Call) -> Reply:
    await call.operations.keys.remove_key(call.principal, call.args.name)
    return Reply({"removed": call.args.name}, f"removed {call.args.name}\n")


COMMANDS = (
    Command(
        ("apikeys", "create"),
        "create a key for the HTTP API; it is shown once",
        "apikeys create laptop --ttl 30d",
        _create,
        _create_arguments,
    ),
    Command(("apikeys", "ls"), "list API keys", "apikeys ls", _list),
    Command(("apikeys", "rm"), "revoke an API key", "apikeys rm laptop", _remove, _name_argument),
)
