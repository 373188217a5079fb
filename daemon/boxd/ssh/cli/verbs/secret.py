"""`secret`: variables for all that you start in your boxes. Values come on standard input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.names.variable import parse_variable
from boxd.names.words import DEFAULT_WORKSPACE
from boxd.secret import Secret
from boxd.ssh.cli.command import Call, Command, Reply, UsageError, workspace_option
from boxd.ssh.cli.prompt import hidden_line
from boxd.ssh.cli.table import moment, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.secret import StoredSecret, Tier


def _name_arguments(parser: argparse.ArgumentParser) -> None:
    workspace_option(parser)
    parser.add_argument("name")


async def value_on_stdin(call: Call, what: str) -> Secret:
    """A text that must stand in no command line. One newline at its end is not part of it.

    At a terminal the command asks for one line and does not echo it.
    """
    data = await hidden_line(call.stdio, what) if call.stdio.terminal else await call.stdin()
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"the {what} is not UTF-8 text") from None
    if not text:
        raise UsageError(f"the {what} is missing: it is read from standard input")
    return Secret(text)


async def _set(call: Call) -> Reply:
    parse_variable(call.args.name, "secret")  # before a person is asked for the value
    value = await value_on_stdin(call, "secret")
    secret, created = await call.operations.secrets.set_secret(
        call.principal, call.args.name, value, tier=_tier(call), ws=call.args.ws
    )
    note = "what runs already keeps what it has; new sessions and commands get this"
    return Reply(_json(secret) | {"created": created}, _listed([secret]), [note])


async def _ls(call: Call) -> Reply:
    found = await call.operations.secrets.list_secrets(call.principal, call.args.ws)
    return Reply([_json(one) for one in found], _listed(found))


async def _rm(call: Call) -> Reply:
    gone = await call.operations.secrets.remove_secret(
        call.principal, call.args.name, tier=_tier(call), ws=call.args.ws
    )
    document = {"removed": gone.name, "tier": gone.tier, "ws": gone.workspace}
    return Reply(document, f"removed secret {gone.name}\n")


def _tier(call: Call) -> Tier:
    return "account" if call.args.ws is None else "workspace"


def _listed(secrets: list[StoredSecret]) -> str:
    rows = [(one.name, _place(one), moment(one.updated)) for one in secrets]
    return table(("NAME", "TIER", "UPDATED"), rows)


def _place(one: StoredSecret) -> str:
    return one.tier if one.tier == "account" else f"{one.tier} {one.workspace or DEFAULT_WORKSPACE}"


def _json(one: StoredSecret) -> dict[str, Any]:
    return {
        "name": one.name,
        "tier": one.tier,
        "ws": one.workspace,
        "updated": one.updated.isoformat(),
    }


COMMANDS = (
    Command(
        ("secret", "set"),
        "keep a variable for what you start in boxes; reads its value from stdin, or asks for it",
        "secret set API_TOKEN -w api < token.txt",
        _set,
        _name_arguments,
    ),
    Command(
        ("secret", "ls"), "list secrets, never their values", "secret ls", _ls, workspace_option
    ),
    Command(
        ("secret", "rm"),
        "forget a secret; without -w that of the whole account",
        "secret rm API_TOKEN -w api",
        _rm,
        _name_arguments,
    ),
)
