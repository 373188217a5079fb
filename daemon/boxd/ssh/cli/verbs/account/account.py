"""`account`: facts about the account itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply

if TYPE_CHECKING:
    import argparse


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text")


async def _name(call: Call) -> Reply:
    name = await call.operations.accounts.set_name(call.principal, call.args.text)
    text = "the account has no name\n" if name is None else f"the account is named {name}\n"
    return Reply({"name": name}, text)


COMMANDS = (
    Command(
        ("account", "name"),
        "set a display name for whoami and the operator; '' removes it",
        "account name 'Alice'",
        _name,
        _name_argument,
    ),
)
