"""All commands of the management CLI, and how a command line is run."""

from __future__ import annotations

import json
import logging
import secrets
import shlex
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.frontdoor.commands import (
    apikeys_cmd,
    catalog_cmd,
    help_cmd,
    info_cmd,
    ls_cmd,
    pin_cmd,
    power_cmd,
    profiles_cmd,
    rm_cmd,
    snapshot_cmd,
    up_cmd,
    whoami_cmd,
)
from boxd.frontdoor.commands.command import Call, Command, Reply, Result, UsageError
from boxd.names.words import escaped, shown

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.frontdoor.commands.command import Door
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_LINE = 64 * 1024
"""Characters of a command line."""

COMMANDS: tuple[Command, ...] = (
    *ls_cmd.COMMANDS,
    *up_cmd.COMMANDS,
    *rm_cmd.COMMANDS,
    *info_cmd.COMMANDS,
    *power_cmd.COMMANDS,
    *pin_cmd.COMMANDS,
    *snapshot_cmd.COMMANDS,
    *profiles_cmd.COMMANDS,
    *apikeys_cmd.COMMANDS,
    *catalog_cmd.COMMANDS,
    *whoami_cmd.COMMANDS,
    *help_cmd.COMMANDS,
)

_log = logging.getLogger(__name__)


async def execute(
    line: str | None, principal: Principal, operations: Operations, door: Door, now: datetime
) -> Result:
    """Runs one command line; None and a blank one mean `help`. Raises nothing but cancellation."""
    as_json = False
    try:
        words = _split(line)
        as_json = "--json" in words
        command, rest = _find(words)
        args = command.parser().parse_args(rest)
        reply = await command.run(Call(principal, operations, door, now, COMMANDS, args))
    except BoxdError as error:
        return Result("", _failure(str(error), as_json), error.exit_status)
    except Exception:
        number = secrets.token_hex(4)
        _log.exception("internal error %s", number)
        return Result("", _failure(f"internal error ({number})", as_json), BoxdError.exit_status)
    return _result(reply, as_json)


def _split(line: str | None) -> list[str]:
    if line is not None and len(line) > MAX_LINE:
        raise UsageError(f"the command line is longer than {MAX_LINE} characters")
    try:
        return shlex.split(line or "") or ["help"]
    except ValueError as error:
        raise UsageError(f"the command line cannot be read: {str(error).lower()}") from error


def _find(words: list[str]) -> tuple[Command, list[str]]:
    if words[0] in ("--help", "-h"):
        words = ["help", *words[1:]]
    for command in COMMANDS:
        size = len(command.words)
        if tuple(words[:size]) == command.words:
            return command, words[size:]
    family = [command.name for command in COMMANDS if command.words[0] == words[0]]
    if family:
        raise UsageError(f"{words[0]} needs one of: {', '.join(family)}")
    raise UsageError(f"there is no command {shown(words[0])}; see: help")


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
