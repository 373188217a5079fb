"""All commands of the management CLI, and how a command line of a console is run."""

from __future__ import annotations

import json
import logging
import secrets
import shlex
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.frontdoor.commands import (
    agent_cmd,
    apikeys_cmd,
    asks_cmd,
    catalog_cmd,
    help_cmd,
    info_cmd,
    ls_cmd,
    mcp_cmd,
    pin_cmd,
    power_cmd,
    profiles_cmd,
    rm_cmd,
    secrets_cmd,
    share_cmd,
    snapshot_cmd,
    sshconfig_cmd,
    stat_cmd,
    up_cmd,
    whoami_cmd,
    workspaces_cmd,
)
from boxd.frontdoor.commands.command import Call, Console, Ended, Reply, Result, UsageError
from boxd.names.words import escaped

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.frontdoor.commands.command import Door, Stdio
    from boxd.frontdoor.commands.mcp_cmd import Serve
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_LINE = 64 * 1024
"""Characters of a command line."""


def cli(serve_mcp: Serve | None = None) -> Console:
    """The commands of user `cli`. `serve_mcp` serves a client of MCP; None: nothing does here."""
    families = (
        ls_cmd,
        up_cmd,
        rm_cmd,
        info_cmd,
        stat_cmd,
        power_cmd,
        pin_cmd,
        snapshot_cmd,
        share_cmd,
        profiles_cmd,
        workspaces_cmd,
        secrets_cmd,
        agent_cmd,
        asks_cmd,
        apikeys_cmd,
        catalog_cmd,
        sshconfig_cmd,
        whoami_cmd,
    )
    commands = [one for family in families for one in family.COMMANDS]
    return Console("cli", (*commands, mcp_cmd.command(serve_mcp), *help_cmd.COMMANDS))


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
        words = _split(line)
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


def _split(line: str | None) -> list[str]:
    if line is not None and len(line) > MAX_LINE:
        raise UsageError(f"the command line is longer than {MAX_LINE} characters")
    try:
        return shlex.split(line or "") or ["help"]
    except ValueError as error:
        raise UsageError(f"the command line cannot be read: {str(error).lower()}") from error


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
