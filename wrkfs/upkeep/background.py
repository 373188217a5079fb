"""Background upkeep of a volume: trash that is too old, garbage, fragmented files.

Every long-lived Filesystem (of mounts and of the daemon) runs it. `claim_upkeep` selects one of
them for trash and garbage. Each session compacts the fragmented files that it has read. After an
error, the next round continues.
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
"""Number of rounds for which a session claims the upkeep of trash and garbage."""
BATCHES = 100
"""Maximum number of garbage batches in one round, because compaction waits for their end."""
FILES = 8
"""Maximum number of files that one round compacts."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """Interval of the rounds, and grace period of garbage.

    `interval`: seconds between two rounds. The first round begins at a random moment of the first
    interval, so that sessions which start together spread their load. `grace`: see `gc.GRACE`.
    """

    interval: float = 30.0
    grace: timedelta = gc.GRACE


PACE = Pace()


def start(fs: Filesystem, pace: Pace = PACE) -> None:
    """Start upkeep of the volume; it runs until `fs` closes."""
    fs.stores.add_task(asyncio.create_task(_run(fs, pace), name="wrkfs upkeep"))


async def run_round(fs: Filesystem, pace: Pace = PACE) -> None:
    """Run one round. Raises the errors of the stores; the next round continues the work."""
    if await fs.stores.upkeep.claim_upkeep(timedelta(seconds=CLAIM * pace.interval)):
        await trash.tidy(fs)
        await gc.collect(fs, grace=pace.grace, batches=BATCHES)
    corruption: Corrupt | None = None
    for ino in fs.stores.take_fragmented(FILES):
        try:
            await compact.compact_file(fs, ino)
        except Corrupt as error:
            # A damaged file must not stop the compaction of the others.
            corruption = error
    if corruption is not None:
        raise corruption


async def _run(fs: Filesystem, pace: Pace) -> None:
    failing = False
    await asyncio.sleep(random.uniform(0, pace.interval))  # noqa: S311 no secret: spreads the load
    while True:
        try:
            await run_round(fs, pace)
            failing = False
        except (Unavailable, Fenced):
            # An outage, or a session that rejoins soon. Calls of programs report it.
            log.debug("upkeep waits for the stores")
        except WrkfsError as error:
            if not failing:
                log.warning("upkeep of the volume failed, and continues later: %s", error)
            failing = True
        except Exception:
            if not failing:
                log.exception("upkeep of the volume failed because of a bug, and continues later")
            failing = True
        await asyncio.sleep(pace.interval)
