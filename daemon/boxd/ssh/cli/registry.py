"""All commands of the management CLI, and how a command line of a console is run."""

from __future__ import annotations

import json
import logging
import secrets
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.names.words import escaped
from boxd.ssh.cli import help as help_cmd
from boxd.ssh.cli.command import Call, Console, Ended, Reply, Result
from boxd.ssh.cli.verbs import (
    agent,
    apikeys,
    asks,
    catalog,
    info,
    ls,
    mcp,
    pin,
    power,
    profiles,
    rm,
    secret,
    share,
    snapshot,
    ssh_config,
    stat,
    up,
    whoami,
    ws,
)
from boxd.ssh.cli.words import words_of

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Door, Stdio
    from boxd.ssh.cli.verbs.mcp import Serve


def cli(serve_mcp: Serve | None = None) -> Console:
    """The commands of user `cli`. `serve_mcp` serves a client of MCP; None: nothing does here."""
    families = (
        ls,
        up,
        rm,
        info,
        stat,
        power,
        pin,
        snapshot,
        share,
        profiles,
        ws,
        secret,
        agent,
        asks,
        apikeys,
        catalog,
        ssh_config,
        whoami,
    )
    commands = [one for family in families for one in family.COMMANDS]
    return Console("cli", (*commands, mcp.command(serve_mcp), *help_cmd.COMMANDS))


CLI = cli()

_log = logging.getLogger(__name__)


async def execute(
    console: Console,
    line: str | None,
    *,
    principal: Principal,
    operations: Operations,
    door: Door,
    now: datetime,
    stdio: Stdio,
) -> Result:
    """Runs one command line; None and a blank one mean `help`. Raises nothing but cancellation.

    What a command wrote to `stdio` itself is not in the result.
    """
    as_json = False
    try:
        words = words_of(line or "") or ["help"]
        as_json = "--json" in words
        command, rest = console.find(words)
        args = command.parser().parse_args(rest)
        reply = await command.run(Call(principal, operations, door, now, stdio, console, args))
    except BoxdError as error:
        return Result("", _failure(door.named(str(error)), as_json), error.exit_status)
    except Exception:
        number = secrets.token_hex(4)
        _log.exception("internal error %s", number)
        return Result("", _failure(f"internal error ({number})", as_json), BoxdError.exit_status)
    return Result(status=reply.status) if isinstance(reply, Ended) else _result(reply, as_json)


def _result(reply: Reply, as_json: bool) -> Result:
    """Notes and failures stand on stderr; with `--json` each is a document of its own."""
    notes = "".join(_note(text, as_json) for text in reply.notes)
    failures = "".join(_failure(text, as_json) for text in reply.failures)
    stdout = _dump(reply.document) if as_json else reply.text
    return Result(stdout, notes + failures, 1 if reply.failures else 0)


def _note(text: str, as_json: bool) -> str:
    return _dump({"note": text}) if as_json else escaped(text) + "\n"


def _failure(text: str, as_json: bool) -> str:
    return _dump({"error": text}) if as_json else escaped(text) + "\n"


def _dump(document: object) -> str:
    return json.dumps(document) + "\n"
