"""`recovery`: codes with which a new SSH key joins the account after all keys are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.ssh.cli.command import Call, Command, Reply
from boxd.ssh.cli.table import key_value_lines
from boxd.ssh.cli.verbs.account.keys import JOINED
from boxd.ssh.cli.verbs.account.secret import value_on_stdin

if TYPE_CHECKING:
    import argparse

_LOST = "remove lost keys: keys rm NAME"


def _code_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?")


async def _create(call: Call) -> Reply:
    """Write only the codes to stdout, one a line."""
    codes = [code.reveal() for code in await call.operations.recovery.create_codes(call.principal)]
    note = (
        "store these codes away from your keys; each works once, they are shown only once, and "
        "older codes no longer work"
    )
    return Reply({"codes": codes}, "".join(f"{code}\n" for code in codes), [note])


async def _list(call: Call) -> Reply:
    count = await call.operations.recovery.count_codes(call.principal)
    return Reply({"codes_left": count}, key_value_lines([("codes left", count)]))


async def _use(call: Call) -> Reply:
    typed: str | None = call.args.code
    code = (await value_on_stdin(call, "recovery code")).reveal() if typed is None else typed
    key = await call.operations.recovery.use_code(call.principal, code)
    document = key.to_json() | {"account": key.owner}
    return Reply(document, f"{key.name} joined the account {key.owner}\n", [JOINED, _LOST])


COMMANDS = (
    Command(
        ("recovery", "create"),
        "print 8 recovery codes, each for one use; they replace older ones",
        "recovery create",
        _create,
    ),
    Command(
        ("recovery", "ls"), "show how many of your recovery codes are left", "recovery ls", _list
    ),
    Command(
        ("recovery", "use"),
        "join an account with the new key that you are connected with; reads the code from stdin",
        "recovery use < code.txt",
        _use,
        _code_argument,
    ),
)
