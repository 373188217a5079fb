"""`audit`: what administrators did, and what they tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.operations.fleet import MAX_AUDITS
from boxd.ssh.admin.arguments import of_owner
from boxd.ssh.cli.command import Call, Command, Reply, UsageError
from boxd.ssh.cli.table import moment, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.account import Audit

COLUMNS = ("TIME", "ADMIN", "STATUS", "OWNER", "COMMAND")
SHOWN = 50
"""Entries, unless more or fewer are asked for."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", dest="count", metavar="N", type=int, default=SHOWN)
    of_owner(parser)


async def _run(call: Call) -> Reply:
    """Oldest first, so that the newest stands beside the prompt. This command itself is one."""
    count = call.args.count
    if not 1 <= count <= MAX_AUDITS:
        raise UsageError(f"-n takes a number from 1 to {MAX_AUDITS}")
    entries = await call.operations.fleet.fleet_audits(call.principal, count, call.args.owner)
    entries.reverse()
    return Reply([_json(one) for one in entries], table(COLUMNS, [_row(one) for one in entries]))


def _row(one: Audit) -> tuple[object, ...]:
    return moment(one.at), one.admin, one.status, ", ".join(one.owners) or None, one.line


def _json(one: Audit) -> dict[str, Any]:
    return {
        "time": one.at.isoformat(),
        "admin": one.admin,
        "status": one.status,
        "owners": list(one.owners),
        "command": one.line,
    }


COMMANDS = (
    Command(
        ("audit",),
        "show what administrators did; STATUS -: not ended",
        "audit -n 20",
        _run,
        _arguments,
    ),
)
