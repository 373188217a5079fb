"""Reads every block that a file shows, and compares it with its checksums."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wrkfs.data.checksums import SUM_SIZE, check
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import Corrupt, Missing
from wrkfs.layout import BLOCK_SIZE, CHECKSUM_UNIT, block_count, block_key
from wrkfs.meta.postgres.snapshot import Finding, connected
from wrkfs.types import SliceId

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig
    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.postgres.snapshot import Connection

READERS = 8
"""Blocks read at once."""
PAGE = 500
"""Slices asked for at once: no transaction stays open while blocks are read."""
DATA = 0
"""`Finding.invariant` of what is wrong with a block."""

_TOTAL = """
    SELECT coalesce(sum(b.size), 0)::bigint, coalesce(max(b.slice_id), 0)
    FROM (SELECT DISTINCT ON (s.slice_id) s.slice_id, s.size FROM slice s
          WHERE NOT s.is_inline AND s.size BETWEEN 1 AND 1099511627776) b"""
_PAGE = """
    SELECT DISTINCT ON (s.slice_id) s.slice_id, s.size, s.checksums, s.inode FROM slice s
    WHERE NOT s.is_inline AND s.slice_id > $1 AND s.slice_id <= $2
        AND s.size BETWEEN 1 AND 1099511627776
        AND octet_length(s.checksums) = 4 * ((s.size + 131071) / 131072)
    ORDER BY s.slice_id LIMIT $3"""
_SHOWN = "SELECT min(s.inode) FROM slice s WHERE s.slice_id = $1 AND NOT s.is_inline"


async def scrub(
    config: VolumeConfig, *, progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """A finding for each block that is missing or has other bytes than were written.

    Blocks of files that were removed meanwhile are not told. `progress(bytes done, bytes in all)`.
    Unavailable, StorageError: the store could not be asked.
    """
    blocks = S3Blocks(config.store)
    try:
        async with connected(config) as connection:
            return await _Scrub(connection, blocks, config.store.prefix, progress).run()
    finally:
        await blocks.close()


class _Scrub:
    """Critical section: the connection is used by `run` alone; blocks are read beside it."""

    def __init__(
        self,
        connection: Connection,
        blocks: BlockStore,
        prefix: str,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._connection = connection
        self._blocks = blocks
        self._prefix = prefix
        self._progress = progress
        self._done = 0
        self._total = 0
        self._at_work: set[asyncio.Task[None]] = set()
        self._broken: list[tuple[int, str]] = []

    async def run(self) -> list[Finding]:
        """See `scrub`."""
        ((self._total, last),) = await self._connection.fetch(_TOTAL)
        at = 0
        try:
            while page := await self._connection.fetch(_PAGE, at, last, PAGE):
                at = page[-1][0]
                for number, size, sums, _ in page:
                    for index in range(block_count(size)):
                        await self._room(READERS - 1)
                        block = self._block(number, size, sums, index)
                        self._at_work.add(asyncio.create_task(block))
            await self._room(0)
        finally:
            for task in self._at_work:
                task.cancel()
            await asyncio.gather(*self._at_work, return_exceptions=True)
        findings = []
        for number, text in self._broken:
            findings += await self._still_shown(number, text)
        return findings

    async def _room(self, limit: int) -> None:
        """Waits until at most `limit` blocks are being read. Raises what one of them raised."""
        while len(self._at_work) > limit:
            done, self._at_work = await asyncio.wait(
                self._at_work, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()

    async def _block(self, number: int, size: int, sums: bytes, index: int) -> None:
        key = block_key(self._prefix, SliceId(number), index)
        length = min(BLOCK_SIZE, size - index * BLOCK_SIZE)
        unit = SUM_SIZE * (BLOCK_SIZE // CHECKSUM_UNIT)
        try:
            data = await self._blocks.get(key, 0, length)
            check(data, sums[index * unit : (index + 1) * unit], f"block {index}")
        except Missing:
            self._broken.append((number, f"slice {number}: block {index} is missing"))
        except Corrupt as error:
            self._broken.append((number, f"slice {number}: {error}"))
        self._done += length
        if self._progress is not None:
            self._progress(self._done, self._total)

    async def _still_shown(self, number: int, text: str) -> list[Finding]:
        ino = await self._connection.fetchval(_SHOWN, number)
        return [] if ino is None else [Finding(DATA, ino, None, text)]
