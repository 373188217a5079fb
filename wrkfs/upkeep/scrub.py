"""Reads every block that a file uses, and compares it with its checksums."""

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
"""Maximum number of blocks that are read at the same time."""
PAGE = 500
"""Number of slices in one query, because no transaction may stay open during the reads."""
DATA = 0
"""`Finding.invariant` of a damaged block."""

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
_USER = "SELECT min(s.inode) FROM slice s WHERE s.slice_id = $1 AND NOT s.is_inline"


async def scrub(
    config: VolumeConfig, *, progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """Return a finding for each block that is missing or differs from what was written.

    Does not report blocks whose files were removed during the scrub. Calls `progress(bytes read,
    total bytes)`. Raises Unavailable, StorageError.
    """
    blocks = S3Blocks(config.store)
    try:
        async with connected(config) as connection:
            return await _Scrub(connection, blocks, config.store.prefix, progress).run()
    finally:
        await blocks.close()


class _Scrub:
    """One scrub. Critical section: only `run` uses the connection; tasks read blocks."""

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
        self._bytes_read = 0
        self._total = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._damage: list[tuple[int, str]] = []
        """Slices with a damaged block, each with a description."""

    async def run(self) -> list[Finding]:
        """Return the findings."""
        ((self._total, last),) = await self._connection.fetch(_TOTAL)
        at = 0
        try:
            while page := await self._connection.fetch(_PAGE, at, last, PAGE):
                at = page[-1][0]
                for number, size, sums, _ in page:
                    for index in range(block_count(size)):
                        await self._wait_for_tasks(READERS - 1)
                        block = self._check_block(number, size, sums, index)
                        self._tasks.add(asyncio.create_task(block))
            await self._wait_for_tasks(0)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        findings = []
        for number, text in self._damage:
            findings += await self._finding(number, text)
        return findings

    async def _wait_for_tasks(self, limit: int) -> None:
        """Wait until at most `limit` tasks run. Raises the error of a task."""
        while len(self._tasks) > limit:
            ended, self._tasks = await asyncio.wait(
                self._tasks, return_when=asyncio.FIRST_COMPLETED
            )
            for task in ended:
                task.result()

    async def _check_block(self, number: int, size: int, sums: bytes, index: int) -> None:
        key = block_key(self._prefix, SliceId(number), index)
        length = min(BLOCK_SIZE, size - index * BLOCK_SIZE)
        unit = SUM_SIZE * (BLOCK_SIZE // CHECKSUM_UNIT)
        try:
            data = await self._blocks.get(key, 0, length)
            check(data, sums[index * unit : (index + 1) * unit], f"block {index}")
        except Missing:
            self._damage.append((number, f"slice {number}: block {index} is missing"))
        except Corrupt as error:
            self._damage.append((number, f"slice {number}: {error}"))
        self._bytes_read += length
        if self._progress is not None:
            self._progress(self._bytes_read, self._total)

    async def _finding(self, number: int, text: str) -> list[Finding]:
        """Return a finding if a file still uses the slice."""
        ino = await self._connection.fetchval(_USER, number)
        return [] if ino is None else [Finding(DATA, ino, None, text)]
