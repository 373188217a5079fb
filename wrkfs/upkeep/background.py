"""Background upkeep of a volume: trash that is too old, garbage, files in many small pieces.

Every long-lived Filesystem (mounts, the daemon's) runs one; `claim_upkeep` lets one of them work
for all. Compaction is each session's own work: it knows which files it met in many pieces. What
fails is left for the next round.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, Fenced, Unavailable, WrkfsError
from wrkfs.upkeep import compact, gc, trash

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem

CLAIM = 3
"""Rounds for which a session claims the work of all."""
BATCHES = 100
"""Batches of garbage that one round collects at most: other files wait for their compaction."""
FILES = 8
"""Files that one round compacts at most."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a session looks after its volume, and how long it leaves garbage alone.

    `interval`: seconds between two rounds; the first comes at a random moment of them, so that
    sessions that were started together do not work together. `grace`: see `gc.GRACE`.
    """

    interval: float = 30.0
    grace: timedelta = gc.GRACE


PACE = Pace()


def start(fs: Filesystem, pace: Pace = PACE) -> None:
    """Looks after the volume from now on until `fs` closes."""
    fs.stores.add_task(asyncio.create_task(_keep(fs, pace), name="wrkfs upkeep"))


async def look_after(fs: Filesystem, pace: Pace = PACE) -> None:
    """One round. Raises what the stores raise; the next round goes on."""
    if await fs.stores.upkeep.claim_upkeep(timedelta(seconds=CLAIM * pace.interval)):
        await trash.tidy(fs)
        await gc.collect(fs, grace=pace.grace, batches=BATCHES)
    damaged: Corrupt | None = None
    for ino in fs.stores.take_fragmented(FILES):
        try:
            await compact.compact_file(fs, ino)
        except Corrupt as error:
            # A file that has lost bytes keeps nobody else waiting.
            damaged = error
    if damaged is not None:
        raise damaged


async def _keep(fs: Filesystem, pace: Pace) -> None:
    ailing = False
    await asyncio.sleep(random.uniform(0, pace.interval))  # noqa: S311 no secret: spreads the load
    while True:
        try:
            await look_after(fs, pace)
            ailing = False
        except (Unavailable, Fenced):
            # An outage, or a session that is about to rejoin: whoever uses the drive tells it.
            log.debug("upkeep waits for the stores")
        except WrkfsError as error:
            if not ailing:
                log.warning("upkeep of the volume failed, it goes on later: %s", error)
            ailing = True
        except Exception:
            if not ailing:
                log.exception("upkeep of the volume met a bug, it goes on later")
            ailing = True
        await asyncio.sleep(pace.interval)
