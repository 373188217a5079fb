"""Deletes the objects that no file shows any more, and what the trash has kept long enough.

Mounts and the service do the same in the background; this command does it now, and tells how much.
It is safe beside any use of the volume. With --compact files in many small pieces are rewritten
first; that reads the index of all files.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs import compact, gc, trash
from wrkfs.cli.output import Answer, Progress, filesystem, human

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig

LEAST_GRACE = 60.0
"""Seconds: twice what any transaction may take. Reads whose layout is older ask again."""
HELP = "delete objects that no file shows any more"


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--grace",
        type=_grace,
        default=gc.GRACE.total_seconds(),
        metavar="SECONDS",
        help="keep what was shown so short ago: reads may be under way "
        f"(default: %(default)g, at least {LEAST_GRACE:g})",
    )
    parser.add_argument(
        "--compact", action="store_true", help="first rewrite files that are in many small pieces"
    )


def _grace(text: str) -> float:
    seconds = float(text)
    if not LEAST_GRACE <= seconds <= timedelta.max.total_seconds() / 2:
        raise ArgumentTypeError(f"at least {LEAST_GRACE:g} s, or bytes that are read may go")
    return seconds


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """See the module. StorageError, Unavailable: ended early, nothing lost."""
    grace = timedelta(seconds=arguments.grace)
    compacted = 0
    async with filesystem(config) as fs:
        if arguments.compact:
            with Progress("compacting files") as bar:
                compacted = await compact.compact_all(fs, progress=lambda count: bar(count, 0))
        with Progress("purging the trash") as bar:
            purged = await trash.tidy(fs, progress=lambda count: bar(count, 0))
        with Progress("collecting slices") as bar:
            done = await gc.collect(fs, grace=grace, progress=lambda count: bar(count, 0))
    data = {"compacted": compacted, "purged": purged, **asdict(done)}
    lines = [
        *([f"{compacted} stretches of files compacted"] if arguments.compact else ()),
        f"{purged} entries purged from the trash",
        f"{done.orphans} slices of ended sessions found uncommitted",
        f"{done.slices} slices collected, {human(done.size)} at most",
    ]
    return Answer(data, lines)
