"""Upkeep that sees the unsent changes of the session: removed names are in the trash."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from wrkfs.meta.delegations.flusher import Flusher
    from wrkfs.meta.interface.upkeep import UpkeepStore
    from wrkfs.types import Ino, Place, SliceId, TrashEntry, TrashPosition


class OrderedUpkeep:
    """Sends the changes of the session before a call that reads or frees the trash.

    Implements `UpkeepStore`; the protocol documents each method.
    """

    def __init__(self, inner: UpkeepStore, flusher: Flusher) -> None:
        self._inner = inner
        self._flusher = flusher

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        self._inner.watch_snapshots(oldest)

    async def claim_upkeep(self, period: timedelta) -> bool:
        return await self._inner.claim_upkeep(period)

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        return await self._inner.garbage(grace, limit)

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        await self._inner.forget_slices(slices)

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        return await self._inner.adopt_orphans(grace, limit, size)

    async def fragmented(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        return await self._inner.fragmented(after, refs, limit)

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        await self._flusher.flush()
        return await self._inner.list_trash(after, limit)

    async def list_trash_back(self, before: TrashPosition | None, limit: int) -> list[TrashEntry]:
        await self._flusher.flush()
        return await self._inner.list_trash_back(before, limit)

    async def place(self, ino: Ino) -> Place | None:
        await self._flusher.flush()
        return await self._inner.place(ino)

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        await self._flusher.flush()
        return await self._inner.purge_trash(until, limit)

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        return await self._inner.trash_excess(share, rows)

    async def thin_trash(self, keep: int, limit: int) -> int:
        return await self._inner.thin_trash(keep, limit)

    async def thin_links(self, share: int, rows: int, limit: int) -> int:
        return await self._inner.thin_links(share, rows, limit)
