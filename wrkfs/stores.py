"""The stores of a Filesystem, for upkeep and tools that work below its calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wrkfs.holds import Holds
from wrkfs.layout import FRAGMENTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.interface.store import NodeStore
    from wrkfs.meta.interface.upkeep import UpkeepStore
    from wrkfs.reader import BlockReader
    from wrkfs.types import FileMap, Ino, SliceId

FRAGMENTED_MAX = 1024
"""Maximum number of fragmented files that are remembered."""


@dataclass(slots=True)
class Stores:
    """Stores of one Filesystem, its holds on snapshots, and its background tasks."""

    meta: NodeStore
    upkeep: UpkeepStore
    blocks: BlockStore
    reader: BlockReader
    prefix: str
    give_up: Callable[[Mapping[SliceId, int]], Awaitable[None]]
    """Reports slices, with their sizes, that no commit will use; after an outage if necessary."""
    holds: Holds = field(default_factory=Holds)
    _fragmented: dict[Ino, None] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def add_task(self, task: asyncio.Task[None]) -> None:
        """Add a background task that uses the Filesystem. `Filesystem.close` cancels it first."""
        self._tasks.append(task)

    async def cancel_tasks(self) -> None:
        """Cancel the background tasks and wait for them. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def inspect(self, file_map: FileMap) -> FileMap:
        """Return the map. Records the file for compaction if the map has many refs."""
        if len(file_map.refs) >= FRAGMENTED:
            self.note_fragmented(file_map.attr.ino)
        return file_map

    def note_fragmented(self, ino: Ino) -> None:
        """Record a file for compaction."""
        if len(self._fragmented) < FRAGMENTED_MAX:
            self._fragmented[ino] = None

    def take_fragmented(self, limit: int) -> list[Ino]:
        """Remove and return up to `limit` recorded files."""
        return [self._fragmented.popitem()[0] for _ in range(min(limit, len(self._fragmented)))]
