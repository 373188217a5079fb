"""Make, list, remove or restore snapshots of directories.

`create` keeps a read-only copy of a file or directory, below `/.snapshots/NAME` of the drive. The
copy shares the bytes of its files. `ls` lists the snapshots, the oldest first. `rm` removes one for
good. `restore` copies a snapshot, or one path of it, back to its old path, or to another one. If
something exists there, `restore` fails; with `--replace`, that moves to the trash in the same step.
"""

from __future__ import annotations

import os
from datetime import UTC
from typing import TYPE_CHECKING, Any

from wrkfs.cli.output import Answer, counted, filesystem, human, shared
from wrkfs.upkeep import copies

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig
    from wrkfs.fs import Filesystem
    from wrkfs.types import Snapshot

HELP = "make, list, remove or restore snapshots (create, ls, rm, restore)"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    creating = verbs.add_parser("create", help="make a snapshot of a file or directory")
    creating.add_argument("path", nargs="?", default="/", metavar="PATH", help="(default: /)")
    creating.add_argument("--name", metavar="NAME", help="name of the snapshot (default: the time)")
    listing = verbs.add_parser("ls", help="list the snapshots, the oldest first")
    removing = verbs.add_parser("rm", help="remove a snapshot for good")
    removing.add_argument("name", metavar="NAME")
    restoring = verbs.add_parser("restore", help="copy a path of a snapshot back to the drive")
    restoring.add_argument("name", metavar="NAME")
    restoring.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="path on the drive when the snapshot was made (default: all of the snapshot)",
    )
    restoring.add_argument("--to", metavar="PATH", help="path of the copy (default: the old path)")
    restoring.add_argument(
        "--replace", action="store_true", help="move what exists at that path to the trash"
    )
    for verb in (creating, listing, removing, restoring):
        shared(verb, again=True)


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Run the verb. Raises NotFound, Exists, InvalidArgument and QuotaExceeded."""
    verb = {"create": _create, "ls": _ls, "rm": _rm, "restore": _restore}[arguments.verb]
    async with filesystem(config) as fs:
        return await verb(fs, arguments)


async def _create(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    name = None if arguments.name is None else os.fsencode(arguments.name)
    snapshot = await copies.create_snapshot(fs, os.fsencode(arguments.path), name)
    row = _row(snapshot)
    return Answer(row, [f"snapshot {row['name']} of {row['path']!r}: {_size(snapshot)}"])


async def _ls(fs: Filesystem, _arguments: argparse.Namespace) -> Answer:
    snapshots = await fs.snapshots()
    lines = [
        f"{one.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}  {human(one.bytes):>10}  "
        f"{one.inodes:>9}  {_row(one)['name']}  {_row(one)['path']!r}"
        for one in snapshots
    ]
    return Answer([_row(one) for one in snapshots], [*lines, counted(len(snapshots), "snapshot")])


async def _rm(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    await copies.remove_snapshot(fs, os.fsencode(arguments.name))
    return Answer({"name": arguments.name}, [f"snapshot {arguments.name} removed"])


async def _restore(fs: Filesystem, arguments: argparse.Namespace) -> Answer:
    path = None if arguments.path is None else os.fsencode(arguments.path)
    to = None if arguments.to is None else os.fsencode(arguments.to)
    name = os.fsencode(arguments.name)
    copy = await copies.restore(fs, name, path, to=to, replace=arguments.replace)
    restored_path = "/" + os.fsdecode(copy)
    return Answer(
        {"path": restored_path}, [f"{restored_path!r} restored from snapshot {arguments.name}"]
    )


def _row(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "name": snapshot.name.decode("ascii"),
        "path": "/" + os.fsdecode(snapshot.path),
        "created_at": snapshot.created_at.astimezone(UTC).isoformat(),
        "inodes": snapshot.inodes,
        "bytes": snapshot.bytes,
    }


def _size(snapshot: Snapshot) -> str:
    return f"{counted(snapshot.inodes, 'inode')}, {human(snapshot.bytes)}"
