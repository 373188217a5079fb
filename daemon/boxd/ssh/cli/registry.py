"""All commands of the management CLI, and the execution of a console's command lines."""

from __future__ import annotations

import json
import logging
import secrets
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.names.words import escaped
from boxd.ssh.cli import help as help_cmd
from boxd.ssh.cli.command import Call, Console, ExitStatus, Reply, Result
from boxd.ssh.cli.command_line import split_words
from boxd.ssh.cli.verbs.account import (
    account,
    agent,
    apikeys,
    asks,
    keys,
    profiles,
    recovery,
    secret,
    stat,
    whoami,
    ws,
)
from boxd.ssh.cli.verbs.boxes import commands as commands_verb
from boxd.ssh.cli.verbs.boxes import info, keep, ls, pin, ports, power, rm, share, snapshot, up
from boxd.ssh.cli.verbs.service import catalog, mcp, ssh_config

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Endpoint, Stdio
    from boxd.ssh.cli.verbs.service.mcp import Serve


def build_console(serve_mcp: Serve | None = None) -> Console:
    """Return the console of user `cli`. `serve_mcp` serves an MCP client; None: MCP is off."""
    verbs = (
        ls,
        up,
        rm,
        info,
        ports,
        stat,
        power,
        commands_verb,
        pin,
        keep,
        snapshot,
        share,
        profiles,
        ws,
        secret,
        agent,
        asks,
        apikeys,
        keys,
        recovery,
        account,
        catalog,
        ssh_config,
        whoami,
    )
    commands = [command for verb in verbs for command in verb.COMMANDS]
    return Console("cli", (*commands, mcp.command(serve_mcp), *help_cmd.COMMANDS))


CLI = build_console()

_log = logging.getLogger(__name__)


async def execute(
    console: Console,
    line: str | None,
    *,
    principal: Principal,
    operations: Operations,
    endpoint: Endpoint,
    now: datetime,
    stdio: Stdio,
) -> Result:
    """Run one command line; None and a blank line mean `help`. Raises nothing but cancellation.

    The result does not contain output that the command wrote to `stdio` itself.
    """
    as_json = False
    try:
        words = split_words(line or "") or ["help"]
        as_json = "--json" in words
        command, rest = console.find(words)
        args = command.parser().parse_args(rest)
        reply = await command.run(Call(principal, operations, endpoint, now, stdio, console, args))
    except BoxdError as error:
        text = endpoint.with_jump_host(str(error))
        return Result("", _failure(text, as_json), error.exit_status)
    except Exception:
        number = secrets.token_hex(4)
        _log.exception("internal error %s", number)
        return Result("", _failure(f"internal error ({number})", as_json), BoxdError.exit_status)
    return Result(status=reply.status) if isinstance(reply, ExitStatus) else _result(reply, as_json)


def _result(reply: Reply, as_json: bool) -> Result:
    """Return the output of a reply. With `--json`, each note and failure is a document, too."""
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
