"""`secret`: environment variables for your boxes. Values come on standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.names.variable import parse_variable
from boxd.names.words import DEFAULT_WORKSPACE
from boxd.secret import Secret
from boxd.ssh.cli.command import Call, Command, Reply, UsageError, workspace_option
from boxd.ssh.cli.prompt import read_hidden_line
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.secret import StoredSecret, Tier


def _name_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("name")


async def value_on_stdin(call: Call, what: str) -> Secret:
    """Return a text that must not appear in a command line, without a newline at its end.

    At a terminal, the command asks for one line and does not echo it. Raises UsageError if the
    text is missing or is not UTF-8.
    """
    data = await read_hidden_line(call.stdio, what) if call.stdio.terminal else await call.stdin()
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"the {what} is not UTF-8 text") from None
    if not text:
        raise UsageError(f"the {what} is missing: it is read from standard input")
    return Secret(text)


async def _set(call: Call) -> Reply:
    parse_variable(call.args.name, "secret")  # before the command asks a person for the value
    value = await value_on_stdin(call, "secret")
    secret, created = await call.operations.secrets.set_secret(
        call.principal, call.args.name, value, tier=_tier(call), ws=call.args.ws
    )
    note = "new sessions and commands get this value; running programs keep the old one"
    return Reply(secret.to_json() | {"created": created}, _table([secret]), [note])


async def _ls(call: Call) -> Reply:
    secrets = await call.operations.secrets.list_secrets(call.principal, call.args.ws)
    return Reply([secret.to_json() for secret in secrets], _table(secrets))


async def _rm(call: Call) -> Reply:
    secret = await call.operations.secrets.remove_secret(
        call.principal, call.args.name, tier=_tier(call), ws=call.args.ws
    )
    document = {"removed": secret.name, "tier": secret.tier, "ws": secret.workspace}
    return Reply(document, f"removed secret {secret.name}\n")


def _tier(call: Call) -> Tier:
    return "account" if call.args.ws is None else "workspace"


def _table(secrets: list[StoredSecret]) -> str:
    rows = [(secret.name, _scope(secret), format_time(secret.updated)) for secret in secrets]
    return table(("NAME", "TIER", "UPDATED"), rows)


def _scope(secret: StoredSecret) -> str:
    if secret.tier == "account":
        return secret.tier
    return f"{secret.tier} {secret.workspace or DEFAULT_WORKSPACE}"


COMMANDS = (
    Command(
        ("secret", "set"),
        "set a variable for your boxes; reads its value from stdin, or asks for it",
        "secret set API_TOKEN -w api < token.txt",
        _set,
        _name_arguments,
    ),
    Command(
        ("secret", "ls"), "list secrets, never their values", "secret ls", _ls, workspace_option
    ),
    Command(
        ("secret", "rm"),
        "remove a secret; without -w that of the whole account",
        "secret rm API_TOKEN -w api",
        _rm,
        _name_arguments,
    ),
)
