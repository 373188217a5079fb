"""List the advisory locks on files of the volume, and the requests that wait for one.

The kernel does not know locks on /wrk, so `lslocks` cannot show them. `END` means the end of the
file, whatever its size is. The process number (PID) belongs to the host of its session. To find a
file by its inode, run `find /wrk -inum N`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wrkfs.cli.output import Answer, filesystem
from wrkfs.types import LOCK_END, LockMode, LockSpace

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig
    from wrkfs.types import ListedLock

HELP = "list the locks of programs on files"
LIMIT = 10_000
"""Maximum number of locks in the list."""
_KINDS = {LockSpace.RANGES: "fcntl", LockSpace.WHOLE_FILE: "flock"}
_MODES = {LockMode.SHARED: "read", LockMode.EXCLUSIVE: "write", None: "any"}
_WIDTHS = {
    "inode": 12,
    "kind": 5,
    "mode": 5,
    "first": 19,
    "last": 19,
    "pid": 7,
    "session": 7,
    "state": 9,
}
"""Columns and their widths in characters."""


def declare(_parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments: none."""


async def run(config: VolumeConfig, _arguments: argparse.Namespace) -> Answer:
    """Return the locks. Raises Unavailable."""
    async with filesystem(config) as fs:
        locks = await fs.locks.listing(LIMIT + 1)
    rows = [_row(lock) for lock in locks[:LIMIT]]
    lines = [_line({name: name.upper() for name in _WIDTHS})]
    lines += [_line({**row, "last": "END" if row["last"] is None else row["last"]}) for row in rows]
    if len(locks) > LIMIT:
        lines.append(f"more than {LIMIT} locks; the rest is not shown")
    return Answer({"locks": rows, "complete": len(locks) <= LIMIT}, lines)


def _line(row: dict[str, Any]) -> str:
    return "  ".join(f"{row[name]:>{width}}" for name, width in _WIDTHS.items())


def _row(lock: ListedLock) -> dict[str, Any]:
    state = "waits" if lock.waits else "held"
    return {
        "inode": lock.ino,
        "kind": _KINDS[lock.space],
        "mode": _MODES[lock.mode],
        "first": lock.first,
        "last": None if lock.last == LOCK_END else lock.last,
        "pid": lock.pid,
        "session": lock.session,
        "state": "delegated" if lock.mode is None else state,
    }
