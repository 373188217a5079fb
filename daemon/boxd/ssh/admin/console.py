"""All commands of administrators. The audit records each command before it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.names.words import escaped
from boxd.operations.shared.audits import MAX_LINE
from boxd.ssh.admin import (
    audit,
    block,
    drain,
    keys,
    kick,
    ls,
    owners,
    power,
    rm,
    stat,
    tier,
)
from boxd.ssh.admin import (
    help as help_cmd,
)
from boxd.ssh.cli.command import Console, Result, UsageError
from boxd.ssh.cli.registry import execute

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.ssh.cli.command import Endpoint, Stdio

CONSOLE = Console(
    "sudo",
    (
        *owners.COMMANDS,
        *ls.COMMANDS,
        *rm.COMMANDS,
        *power.COMMANDS,
        *kick.COMMANDS,
        *tier.COMMANDS,
        *block.COMMANDS,
        *keys.COMMANDS,
        *stat.COMMANDS,
        *audit.COMMANDS,
        *drain.COMMANDS,
        *help_cmd.COMMANDS,
    ),
)


async def run_audited(
    line: str | None,
    *,
    principal: Principal,
    operations: Operations,
    endpoint: Endpoint,
    now: datetime,
    stdio: Stdio,
) -> Result:
    """Record one command line in the audit, then run it. Raises nothing but cancellation.

    The audit also records invalid command lines. A command that it cannot record does not run.
    """
    typed = line or "help"
    try:
        async with operations.fleet.audited(principal, typed) as entry:
            if entry.cut:
                error = UsageError(f"the command line is longer than {MAX_LINE} bytes")
                result = _failure(error, typed)
            else:
                result = await execute(
                    CONSOLE,
                    typed,
                    principal=entry.principal,
                    operations=operations,
                    endpoint=endpoint,
                    now=now,
                    stdio=stdio,
                )
            entry.status = result.status
    except BoxdError as error:
        return _failure(error, typed)
    return result


def _failure(error: BoxdError, typed: str) -> Result:
    """Return the result of a rejected command, in the form of `execute`."""
    as_json = "--json" in typed.split()
    text = json.dumps({"error": str(error)}) if as_json else escaped(str(error))
    return Result("", text + "\n", error.exit_status)
