"""All commands of administrators, and how one is run: written down first."""

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
    from boxd.ssh.cli.command import Door, Stdio

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
    door: Door,
    now: datetime,
    stdio: Stdio,
) -> Result:
    """Runs one command line, also one that makes no sense, once it stands in the audit.

    What cannot be written down is not run. Raises nothing but cancellation.
    """
    typed = line or "help"
    try:
        async with operations.fleet.audited(principal, typed) as deed:
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
