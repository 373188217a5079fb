"""The part of `PostgresMeta` that does the upkeep; see `upkeep.UpkeepStore` for every method."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt
from wrkfs.layout import NAME_MAX
from wrkfs.meta import rows, rules
from wrkfs.meta.sessions import PATIENCE, SILENCE
from wrkfs.types import Ino, Place, SliceId, TrashEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    import asyncpg

    from wrkfs.meta.links import Links
    from wrkfs.meta.sessions import MountSession
    from wrkfs.types import Attr, Stretch

_DAWN = datetime.min.replace(tzinfo=UTC)


class PostgresUpkeep:
    """Upkeep of a volume in PostgreSQL."""

    _links: Links
    _session: MountSession

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        """See UpkeepStore."""
        self._session.oldest_snapshot = oldest

    async def claim_upkeep(self, period: timedelta) -> bool:
        """See UpkeepStore."""
        claim = (self._session.id, self._session.epoch, period)
        mine: bool = (await self._links.call("claim_upkeep", claim))[0][0]
        if mine:
            # Who died keeps garbage from being collected; short sessions live for no heartbeat.
            await self._session.reap(SILENCE, PATIENCE)
        return mine

    # -- garbage --

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        """See UpkeepStore."""
        slices, sizes = (await self._links.call("garbage", (grace, limit)))[0]
        found = list(zip(slices or (), sizes or (), strict=True))
        if any(slice_id <= 0 or size < 0 for slice_id, size in found):
            raise Corrupt("deleted slice")
        return found

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        """See UpkeepStore."""
        await self._links.call("forget_slices", (list(slices),))

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        """See UpkeepStore."""
        await self._session.give_up(list(slices), list(slices.values()))

    async def drop_ranges(self) -> None:
        """See UpkeepStore."""
        await self._links.call("drop_ranges", (self._session.id,))

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        """See UpkeepStore."""
        ranges, ids = (await self._links.call("adopt_orphans", (grace, limit, size)))[0]
        return ranges, ids

    # -- compaction --

    async def compact(self, stretch: Stretch) -> bool:
        """See UpkeepStore."""
        extent = stretch.extent
        row = await self._session.mutate(
            "compact",
            stretch.ino,
            extent.pos,
            extent.length,
            extent.slice_id,
            b"" if extent.inline is not None else extent.checksums,
            extent.inline,
            [ref.slice_id for ref in stretch.refs],
            [ref.pos for ref in stretch.refs],
            [ref.off for ref in stretch.refs],
            [ref.length for ref in stretch.refs],
            list(stretch.hidden),
        )
        done: bool = row[1]
        return done

    async def ragged(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        """See UpkeepStore."""
        return list((await self._links.call("ragged", (after, refs, limit)))[0][0])

    # -- trash --

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        """See UpkeepStore."""
        start = (_DAWN, 0) if after is None else (after.deleted_at, after.ino)
        return [_entry(row) for row in await self._links.call("list_trash", (*start, limit))]

    async def place(self, ino: Ino) -> Place | None:
        """See UpkeepStore."""
        parent, name, alive = (await self._links.call("place", (ino,)))[0]
        if name is None:
            return None
        _check_name(name)
        return Place(Ino(parent), name, alive)

    async def restore(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """See UpkeepStore."""
        rules.check_name(name)
        cookie = await self._session.fresh_id()
        return rows.attr(await self._session.mutate("restore", ino, parent, name, cookie))

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        """See UpkeepStore."""
        count: int = (await self._links.call("purge_trash", (until, limit)))[0][0]
        return count

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        """See UpkeepStore."""
        found: datetime | None = (await self._links.call("trash_excess", (share, rows)))[0][0]
        return found

    async def thin_trash(self, keep: int, limit: int) -> int:
        """See UpkeepStore."""
        count: int = (await self._links.call("thin_trash", (keep, limit)))[0][0]
        return count


def _entry(row: asyncpg.Record) -> TrashEntry:
    found = TrashEntry(*row)
    _check_name(found.name)
    if found.ino <= 0 or found.size < 0 or not 0 <= found.mode <= 0xFFFF:
        raise Corrupt("entry of the trash")
    return found


def _check_name(name: bytes) -> None:
    if not 0 < len(name) <= NAME_MAX or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise Corrupt("name in the trash")
