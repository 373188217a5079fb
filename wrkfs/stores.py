"""What upkeep and tools of a volume work on: the parts of a Filesystem below its calls."""

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
"""Files that are remembered for it."""


@dataclass(slots=True)
class Stores:
    """Stores of one Filesystem, what it still reads of the past, and who works on it."""

    meta: NodeStore
    upkeep: UpkeepStore
    blocks: BlockStore
    reader: BlockReader
    prefix: str
    give_up: Callable[[Mapping[SliceId, int]], Awaitable[None]]
    """Tells slices, with their sizes, that will not be committed; in an outage, later."""
    holds: Holds = field(default_factory=Holds)
    _fragmented: dict[Ino, None] = field(default_factory=dict)
    _attendants: list[asyncio.Task[None]] = field(default_factory=list)

    def attend(self, task: asyncio.Task[None]) -> None:
        """A task that works on the Filesystem: it is ended before all else when that closes."""
        self._attendants.append(task)

    async def dismiss(self) -> None:
        """Ends the attendants. Idempotent."""
        tasks, self._attendants = self._attendants, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def noted(self, file_map: FileMap) -> FileMap:
        """A map that was read: it may be one that compaction should shorten."""
        if len(file_map.refs) >= FRAGMENTED:
            self.note_fragmented(file_map.attr.ino)
        return file_map

    def note_fragmented(self, ino: Ino) -> None:
        """A file that compaction should look at."""
        if len(self._fragmented) < FRAGMENTED_MAX:
            self._fragmented[ino] = None

    def take_fragmented(self, limit: int) -> list[Ino]:
        """Files that were noted since they were taken last, at most `limit`."""
        return [self._fragmented.popitem()[0] for _ in range(min(limit, len(self._fragmented)))]
