"""What was removed and can still be restored.

`ls` lists it, the oldest first; `restore` brings a path (the newest that was removed there) or
an entry by its number in the list back, where it was or to another path, and never replaces
anything; `empty` frees all of it.
"""

from __future__ import annotations

import os
from datetime import UTC
from typing import TYPE_CHECKING, Any

from wrkfs import trash
from wrkfs.cli.output import Answer, Progress, filesystem, human, shared
from wrkfs.types import Ino

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig
    from wrkfs.fs import Filesystem
    from wrkfs.trash import Removed

HELP = "what was removed: ls, restore, empty"


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("ls", help="what can be restored, the oldest first")
    listing.add_argument("path", nargs="?", default="", metavar="PATH", help="only at or below it")
    restoring = verbs.add_parser("restore", help="bring something back")
    what = restoring.add_mutually_exclusive_group(required=True)
    what.add_argument("path", nargs="?", metavar="PATH")
    what.add_argument("--number", type=int, metavar="N", help="the entry that `ls` shows as N")
    restoring.add_argument("--to", metavar="PATH", help="somewhere else than it was")
    emptying = verbs.add_parser("empty", help="free everything in the trash")
    for verb in (listing, restoring, emptying):
        shared(verb, again=True)


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """See the module. NotFound, Exists, NotDirectory, QuotaExceeded."""
    verb = {"ls": _ls, "restore": _restore, "empty": _empty}[arguments.verb]
    async with filesystem(config) as fs:
        return await verb(fs, arguments)


async def _ls(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    below = os.fsencode(arguments.path).strip(b"/")
    found, read = [], 0
    with Progress("reading the trash") as bar:
        async for removed in trash.entries(fs):
            read += 1
            bar(read, 0)
            if not below or f"{_path(removed)}/".startswith(f"{os.fsdecode(below)}/"):
                found.append(removed)
    rows = [_row(removed) for removed in found]
    lines = [
        f"{row['number']:>10}  {row['deleted_at']:%Y-%m-%d %H:%M:%S}  "
        f"{'directory' if row['directory'] else human(row['bytes']):>10}  {row['path']!r}"
        for row in rows
    ]
    total = sum(row["bytes"] for row in rows)
    lines.append(f"{len(rows)} entries, {human(total)}")
    return Answer([{**row, "deleted_at": row["deleted_at"].isoformat()} for row in rows], lines)


async def _restore(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    what: bytes | Ino = Ino(arguments.number or 0)
    if arguments.path is not None:
        what = os.fsencode(arguments.path)
    to = None if arguments.to is None else os.fsencode(arguments.to)
    with Progress("restoring") as bar:
        done = await trash.restore(fs, what, to=to, progress=lambda count: bar(count, 0))
    await fs.sync()
    path = os.fsdecode(done.path)
    return Answer({"path": path, "files": done.files}, [f"{path!r}: {done.files} files restored"])


async def _empty(fs: Filesystem, _arguments: argparse.Namespace) -> Answer:
    with Progress("emptying the trash") as bar:
        count = await trash.empty(fs, progress=lambda count: bar(count, 0))
    return Answer({"entries": count}, [f"{count} entries freed"])


def _path(removed: Removed) -> str:
    """Its path, or what is left to say of it."""
    if removed.path is None:
        return f"(directory {removed.entry.parent})/{os.fsdecode(removed.entry.name)}"
    return os.fsdecode(removed.path)


def _row(removed: Removed) -> dict[str, Any]:
    return {
        "number": removed.entry.ino,
        "path": _path(removed),
        "directory": removed.is_dir,
        "bytes": removed.entry.size,
        "deleted_at": removed.entry.deleted_at.astimezone(UTC),
    }
