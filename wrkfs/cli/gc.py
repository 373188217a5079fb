"""Delete unreferenced objects, and purge expired entries of the trash.

Mounts and the service do the same in the background. This command does it now and prints how much
it deleted. It is safe beside any use of the volume. `--compact` first rewrites fragmented files,
which reads the index of all files.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs.cli.output import Answer, Progress, filesystem, human
from wrkfs.upkeep import compact, gc, trash

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig

LEAST_GRACE = 60.0
"""Seconds: twice the longest transaction. A read with an older file map fetches the map again."""
HELP = "delete unreferenced objects now"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    parser.add_argument(
        "--grace",
        type=_grace,
        default=gc.GRACE.total_seconds(),
        metavar="SECONDS",
        help="keep objects that were referenced within this time, since reads may still use them "
        f"(default: %(default)g, at least {LEAST_GRACE:g})",
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="first rewrite files that consist of many small slices",
    )


def _grace(text: str) -> float:
    seconds = float(text)
    if not LEAST_GRACE <= seconds <= timedelta.max.total_seconds() / 2:
        raise ArgumentTypeError(
            f"must be at least {LEAST_GRACE:g} s: a shorter time deletes objects during a read"
        )
    return seconds


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Run the jobs. StorageError and Unavailable end them early; no data is lost."""
    grace = timedelta(seconds=arguments.grace)
    compacted = 0
    async with filesystem(config) as fs:
        if arguments.compact:
            with Progress("compacting files") as bar:
                compacted = await compact.compact_all(fs, progress=lambda count: bar(count, 0))
        with Progress("purging the trash") as bar:
            purged = await trash.tidy(fs, progress=lambda count: bar(count, 0))
        with Progress("collecting slices") as bar:
            result = await gc.collect(fs, grace=grace, progress=lambda count: bar(count, 0))
    data = {"compacted": compacted, "purged": purged, **asdict(result)}
    lines = [
        *([f"{compacted} ranges of files compacted"] if arguments.compact else ()),
        f"{purged} entries purged from the trash",
        f"{result.orphans} uncommitted slices of ended sessions marked for deletion",
        f"{result.slices} slices deleted, at most {human(result.size)}",
    ]
    return Answer(data, lines)
