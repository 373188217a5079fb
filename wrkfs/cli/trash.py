"""List, restore or purge removed files and directories.

`ls` lists the trash, the oldest entry first. `restore` restores a path, or an entry by its number
in the list, at its old place or at another path. If a path was removed more than once, `restore`
takes the newest. It never replaces an existing file. `empty` purges the trash.

`restore` of a directory also restores the entries that were removed from it, with all names of
hard-linked files. If an entry stays in the trash, `restore` lists it and exits with 1. A further
name (`link` in the list) that was removed earlier than the tree stays in the trash; `restore` only
counts it.
"""

from __future__ import annotations

import os
from datetime import UTC
from typing import TYPE_CHECKING, Any

from wrkfs.cli.output import Answer, Progress, counted, filesystem, human, shared
from wrkfs.types import Ino
from wrkfs.upkeep import trash

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig
    from wrkfs.fs import Filesystem
    from wrkfs.upkeep.trash import RemovedEntry

HELP = "list, restore or purge removed files (ls, restore, empty)"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("ls", help="list the entries that can be restored, the oldest first")
    listing.add_argument(
        "path",
        nargs="?",
        default="",
        metavar="PATH",
        help="list only entries at or below this path",
    )
    restoring = verbs.add_parser("restore", help="restore a path or an entry")
    what = restoring.add_mutually_exclusive_group(required=True)
    what.add_argument("path", nargs="?", metavar="PATH")
    what.add_argument(
        "--number", type=int, metavar="N", help="restore the entry that `ls` shows as N"
    )
    restoring.add_argument(
        "--to", metavar="PATH", help="restore to this path instead of the old one"
    )
    emptying = verbs.add_parser("empty", help="purge all entries")
    for verb in (listing, restoring, emptying):
        shared(verb, again=True)


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Run the verb. Raises NotFound, Exists, NotDirectory and QuotaExceeded."""
    verb = {"ls": _ls, "restore": _restore, "empty": _empty}[arguments.verb]
    async with filesystem(config) as fs:
        return await verb(fs, arguments)


async def _ls(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    below = os.fsencode(arguments.path).strip(b"/")
    entries, count = [], 0
    with Progress("reading the trash") as bar:
        async for removed in trash.entries(fs):
            count += 1
            bar(count, 0)
            if not below or f"{_path(removed)}/".startswith(f"{os.fsdecode(below)}/"):
                entries.append(removed)
    rows = [_row(removed) for removed in entries]
    lines = [
        f"{row['number']:>10}  {row['deleted_at']:%Y-%m-%d %H:%M:%S}  "
        f"{_size(row):>10}  {row['path']!r}"
        for row in rows
    ]
    total = sum(row["bytes"] for row in rows if not row["link"])
    lines.append(f"{counted(len(rows), 'entry', 'entries')}, {human(total)}")
    return Answer([{**row, "deleted_at": row["deleted_at"].isoformat()} for row in rows], lines)


async def _restore(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    what: bytes | Ino = Ino(arguments.number or 0)
    if arguments.path is not None:
        what = os.fsencode(arguments.path)
    to = None if arguments.to is None else os.fsencode(arguments.to)
    with Progress("restoring") as bar:
        result = await trash.restore(fs, what, to=to, progress=lambda count: bar(count, 0))
    await fs.sync()
    path = os.fsdecode(result.path)
    missing = {os.fsdecode(one): why for one, why in sorted(result.missing.items())}
    earlier = [os.fsdecode(one) for one in sorted(result.earlier)]
    data = {
        "path": path,
        "files": result.files,
        "directories": result.directories,
        "missing": list(missing),
        "earlier": earlier,
    }
    also = (
        f" and {counted(result.directories, 'directory', 'directories')}"
        if result.directories
        else ""
    )
    lines = [f"{path!r}: {counted(result.files, 'file')}{also} restored"]
    lines += [f"not restored, {why}: {one!r}" for one, why in missing.items()]
    if earlier:
        lines.append(
            f"{counted(len(earlier), 'other name')} of restored files stayed in the trash, for "
            f"example {earlier[0]!r}: removed earlier than the tree"
        )
    return Answer(data, lines, status=1 if missing else 0)


async def _empty(fs: Filesystem, _arguments: argparse.Namespace) -> Answer:
    with Progress("emptying the trash") as bar:
        count = await trash.empty(fs, progress=lambda count: bar(count, 0))
    return Answer({"entries": count}, [f"{counted(count, 'entry', 'entries')} purged"])


def _path(removed: RemovedEntry) -> str:
    """Return the old path, or parent and name when the parent directory is gone."""
    if removed.path is None:
        return f"(directory {removed.entry.parent})/{os.fsdecode(removed.entry.name)}"
    return os.fsdecode(removed.path)


def _size(row: dict[str, Any]) -> str:
    if row["directory"] or row["link"]:
        return "directory" if row["directory"] else "link"
    return human(row["bytes"])


def _row(removed: RemovedEntry) -> dict[str, Any]:
    return {
        "number": removed.entry.ino,
        "path": _path(removed),
        "directory": removed.is_dir,
        "link": removed.entry.linked,
        "bytes": removed.entry.size,
        "deleted_at": removed.entry.deleted_at.astimezone(UTC),
    }
