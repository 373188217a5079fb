"""`audit`: the commands of administrators, including rejected ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boxd.operations.fleet import MAX_AUDITS
from boxd.ssh.admin.arguments import owner_option
from boxd.ssh.cli.command import Call, Command, Reply, UsageError
from boxd.ssh.cli.table import format_time, table

if TYPE_CHECKING:
    import argparse

    from boxd.model.account import Audit

COLUMNS = ("TIME", "ADMIN", "STATUS", "OWNER", "COMMAND")
DEFAULT_COUNT = 50
"""Entries to show without `-n`."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", dest="count", metavar="N", type=int, default=DEFAULT_COUNT)
    owner_option(parser)


async def _run(call: Call) -> Reply:
    """Return the entries, newest last, so that it is next to the prompt.

    The last entry is this command itself.
    """
    count = call.args.count
    if not 1 <= count <= MAX_AUDITS:
        raise UsageError(f"-n takes a number from 1 to {MAX_AUDITS}")
    entries = await call.operations.fleet.fleet_audits(call.principal, count, call.args.owner)
    entries.reverse()
    rows = [_row(entry) for entry in entries]
    return Reply([_json(entry) for entry in entries], table(COLUMNS, rows))


def _row(entry: Audit) -> tuple[object, ...]:
    owners = ", ".join(entry.owners) or None
    return format_time(entry.at), entry.admin, entry.status, owners, entry.line


def _json(entry: Audit) -> dict[str, Any]:
    return {
        "time": entry.at.isoformat(),
        "admin": entry.admin,
        "status": entry.status,
        "owners": list(entry.owners),
        "command": entry.line,
    }


COMMANDS = (
    Command(
        ("audit",),
        "show the commands of administrators; STATUS -: no end is recorded",
        "audit -n 20",
        _run,
        _arguments,
    ),
)
