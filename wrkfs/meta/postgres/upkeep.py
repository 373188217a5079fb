"""Upkeep of a volume in PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt
from wrkfs.layout import NAME_MAX
from wrkfs.meta.postgres.sessions import PATIENCE, SILENCE
from wrkfs.types import Ino, Place, SliceId, TrashEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    import asyncpg

    from wrkfs.meta.postgres.links import Links
    from wrkfs.meta.postgres.sessions import MountSession
    from wrkfs.types import TrashPosition

_DAWN = datetime.min.replace(tzinfo=UTC)
_DUSK = datetime(9999, 1, 1, tzinfo=UTC)


class PostgresUpkeep:
    """Upkeep of a volume: each method is one call of one SQL function.

    Implements `UpkeepStore`; the protocol documents each method.
    """

    def __init__(self, links: Links, session: MountSession) -> None:
        self._links = links
        self._session = session

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        self._session.oldest_snapshot = oldest

    async def claim_upkeep(self, period: timedelta) -> bool:
        claim = (self._session.id, self._session.epoch, period)
        claimed: bool = (await self._links.call("claim_upkeep", claim))[0][0]
        if claimed:
            # Dead sessions block garbage collection, and a short session may end before its
            # heartbeat reaps them.
            await self._session.reap(SILENCE, PATIENCE)
        return claimed

    # -- garbage --

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        slices, sizes = (await self._links.call("garbage", (grace, limit)))[0]
        garbage = list(zip(slices or (), sizes or (), strict=True))
        if any(slice_id <= 0 or size < 0 for slice_id, size in garbage):
            raise Corrupt("id or size of a deleted slice")
        return garbage

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        await self._links.call("forget_slices", (list(slices),))

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        ranges, ids = (await self._links.call("adopt_orphans", (grace, limit, size)))[0]
        return ranges, ids

    # -- compaction --

    async def fragmented(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        return list((await self._links.call("ragged", (after, refs, limit)))[0][0])

    # -- trash --

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        start: tuple[object, ...] = (_DAWN, 0, 0, b"")
        if after is not None:
            start = (after.deleted_at, after.ino, after.parent, after.name)
        return [_entry(row) for row in await self._links.call("list_trash", (*start, limit))]

    async def list_trash_back(self, before: TrashPosition | None, limit: int) -> list[TrashEntry]:
        start: tuple[object, ...] = (_DUSK, 0, 0, b"")
        if before is not None:
            start = (before.deleted_at, before.ino, before.parent, before.name)
        return [_entry(row) for row in await self._links.call("list_trash_back", (*start, limit))]

    async def place(self, ino: Ino) -> Place | None:
        parent, name, alive = (await self._links.call("place", (ino,)))[0]
        if name is None:
            return None
        _check_name(name)
        return Place(Ino(parent), name, alive)

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        count: int = (await self._links.call("purge_trash", (until, limit)))[0][0]
        return count

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        until: datetime | None = (await self._links.call("trash_excess", (share, rows)))[0][0]
        return until

    async def thin_trash(self, keep: int, limit: int) -> int:
        count: int = (await self._links.call("thin_trash", (keep, limit)))[0][0]
        return count

    async def thin_links(self, share: int, rows: int, limit: int) -> int:
        count: int = (await self._links.call("thin_links", (share, rows, limit)))[0][0]
        return count


def _entry(row: asyncpg.Record) -> TrashEntry:
    entry = TrashEntry(*row)
    _check_name(entry.name)
    if entry.ino <= 0 or entry.size < 0 or not 0 <= entry.mode <= 0xFFFF:
        raise Corrupt("inode, size or mode of an entry in the trash")
    return entry


def _check_name(name: bytes) -> None:
    if not 0 < len(name) <= NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise Corrupt("name of an entry in the trash")
