"""All commands of administrators, and how one is run: written down first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from boxd.errors import BoxdError
from boxd.frontdoor.commands.command import Console, Result, UsageError
from boxd.frontdoor.commands.registry import execute
from boxd.frontdoor.commands.sudo import (
    audit_cmd,
    block_cmd,
    drain_cmd,
    help_cmd,
    keys_cmd,
    kick_cmd,
    ls_cmd,
    owners_cmd,
    power_cmd,
    rm_cmd,
    stat_cmd,
    tier_cmd,
)
from boxd.names.words import escaped
from boxd.operations.audits import MAX_LINE

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.frontdoor.commands.command import Door, Stdio
    from boxd.operations import Operations
    from boxd.principal import Principal

CONSOLE = Console(
    "sudo",
    (
        *owners_cmd.COMMANDS,
        *ls_cmd.COMMANDS,
        *rm_cmd.COMMANDS,
        *power_cmd.COMMANDS,
        *kick_cmd.COMMANDS,
        *tier_cmd.COMMANDS,
        *block_cmd.COMMANDS,
        *keys_cmd.COMMANDS,
        *stat_cmd.COMMANDS,
        *audit_cmd.COMMANDS,
        *drain_cmd.COMMANDS,
        *help_cmd.COMMANDS,
    ),
)


async def run_audited(
    line: str | None,
    *,
    principal: Principal,
    operations: Operations,
    door: Door,
    now: datetime,
    stdio: Stdio,
) -> Result:
    """Runs one command line, also one that makes no sense, once it stands in the audit.

    What cannot be written down is not run. Raises nothing but cancellation.
    """
    typed = line or "help"
    try:
        async with operations.audited(principal, typed) as deed:
            if deed.cut:
                error = UsageError(f"a command line of administrators has {MAX_LINE} bytes at most")
                result = _refused(error, typed)
            else:
                result = await execute(
                    CONSOLE,
                    typed,
                    principal=deed.principal,
                    operations=operations,
                    door=door,
                    now=now,
                    stdio=stdio,
                )
            deed.status = result.status
    except BoxdError as error:
        return _refused(error, typed)
    return result


def _refused(error: BoxdError, typed: str) -> Result:
    """As `execute` refuses."""
    as_json = "--json" in typed.split()
    text = json.dumps({"error": str(error)}) if as_json else escaped(str(error))
    return Result("", text + "\n", error.exit_status)
