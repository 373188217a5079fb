"""Background upkeep of a volume: trash that is too old, garbage, files in many small pieces.

Every long-lived Filesystem (mounts, the daemon's) runs one; `claim_upkeep` lets one of them work
for all. Compaction is each session's own work: it knows which files it met in many pieces. What
fails is left for the next round.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs import compact, gc, trash
from wrkfs.errors import Fenced, Unavailable, WrkfsError

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem

INTERVAL = 30.0
"""Seconds between two rounds of one session; the first comes at a random moment of them, so that
sessions that were started together do not work together."""
CLAIM = timedelta(seconds=3 * INTERVAL)
FILES = 8
"""Files that one round compacts at most."""

log = logging.getLogger(__name__)


def start(fs: Filesystem) -> None:
    """Looks after the volume from now on until `fs` closes."""
    fs.stores.attend(asyncio.create_task(_keep(fs), name="wrkfs upkeep"))


async def look_after(fs: Filesystem) -> None:
    """One round. Raises what the stores raise; the next round goes on."""
    for ino in fs.stores.take_ragged(FILES):
        await compact.compact_file(fs, ino)
    if await fs.stores.meta.claim_upkeep(CLAIM):
        await trash.tidy(fs)
        await gc.collect(fs)


async def _keep(fs: Filesystem) -> None:
    ailing = False
    await asyncio.sleep(random.uniform(0, INTERVAL))  # noqa: S311 no secret: spreads the load
    while True:
        try:
            await look_after(fs)
            ailing = False
        except (Unavailable, Fenced):
            # An outage, or a session that is about to rejoin: whoever uses the drive tells it.
            log.debug("upkeep waits for the stores")
        except WrkfsError as error:
            if not ailing:
                log.warning("upkeep of the volume failed, it goes on later: %s", error)
            ailing = True
        await asyncio.sleep(INTERVAL)
