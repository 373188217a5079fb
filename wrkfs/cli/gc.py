"""Deletes the objects that no file shows any more, and what the trash has kept long enough.

Mounts and the service do the same in the background; this command does it now, and tells how much.
It is safe beside any use of the volume.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs import gc, trash
from wrkfs.cli.output import Answer, Progress, filesystem, human

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig

HELP = "delete objects that no file shows any more"


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--grace",
        type=float,
        default=gc.GRACE.total_seconds(),
        metavar="SECONDS",
        help="keep what was shown so short ago: reads may be under way (default: %(default)g)",
    )


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """See the module. StorageError, Unavailable: ended early, nothing lost."""
    grace = timedelta(seconds=max(0.0, arguments.grace))
    async with filesystem(config) as fs:
        purged = await trash.tidy(fs)
        with Progress("collecting slices") as bar:
            done = await gc.collect(fs, grace=grace, progress=lambda count: bar(count, 0))
    data = {"purged": purged, **asdict(done)}
    lines = [
        f"{purged} entries purged from the trash",
        f"{done.orphans} slices of ended sessions found uncommitted",
        f"{done.slices} slices collected, {human(done.size)} at most",
    ]
    return Answer(data, lines)
