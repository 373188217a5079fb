"""The part of `MemoryMeta` that does the upkeep; see `upkeep.UpkeepStore` for every method."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.doubles.meta_volume import LINK_MAX, Entry
from wrkfs.errors import Exists, InvalidArgument, NotFound, QuotaExceeded, TooManyLinks
from wrkfs.layout import CHUNK_SIZE
from wrkfs.meta import rules
from wrkfs.types import Ino, Place, SliceId, SliceRef, TrashEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.doubles.meta_volume import MemoryVolume, Node, Trashed
    from wrkfs.types import Attr, SessionId, Spot, Stretch, TrashPosition

ADOPTED = 65_536
"""Ids that one call of `adopt_orphans` looks at."""


class MemoryUpkeep:
    """Upkeep of a volume in memory."""

    _volume: MemoryVolume
    _session: SessionId
    _oldest: Callable[[], float | None]

    def _alive(self) -> MemoryVolume:
        raise NotImplementedError

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        self._oldest = oldest
        self._volume.oldest[self._session] = oldest

    async def claim_upkeep(self, period: timedelta) -> bool:
        volume, now = self._volume, time.monotonic()
        holder, until = volume.upkeep
        if self._session not in volume.epochs:
            return False
        if holder in volume.epochs and holder != self._session and until > now:
            return False
        volume.upkeep = (self._session, now + period.total_seconds())
        return True

    # -- garbage --

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        volume = self._volume
        times = [taken for oldest in volume.oldest.values() if (taken := oldest()) is not None]
        horizon = min([*times, time.monotonic()]) - grace.total_seconds()
        old = [
            (slice_id, size)
            for slice_id, (size, deleted_at) in volume.freed_slices.items()
            if deleted_at <= horizon
        ][:limit]
        used = volume.used_slices()
        for slice_id, _ in old:
            if slice_id in used:
                del volume.freed_slices[slice_id]
        return [(slice_id, size) for slice_id, size in old if slice_id not in used]

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        for slice_id in slices:
            self._volume.freed_slices.pop(slice_id, None)

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        used = self._volume.used_slices()
        for slice_id, size in slices.items():
            if slice_id not in used:
                self._volume.freed_slices.setdefault(slice_id, (size, time.monotonic()))

    async def drop_ranges(self) -> None:
        volume = self._volume
        if self._session not in volume.epochs:
            return
        volume.ranges = [one for one in volume.ranges if one.session != self._session]

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        volume, now, count = self._volume, time.monotonic(), 0
        for one in volume.ranges:
            if one.ended_at is None and one.session not in volume.epochs:
                one.ended_at = now
        ready = [
            one
            for one in volume.ranges
            if one.ended_at is not None and one.ended_at <= now - grace.total_seconds()
        ][:limit]
        used, room, ranges = volume.used_slices(), ADOPTED, 0
        for one in ready:
            taken = min(one.count, room)
            for number in map(SliceId, range(one.first, one.first + taken)):
                if number not in used and number not in volume.freed_slices:
                    volume.freed_slices[number] = (size, one.ended_at or now)
                    count += 1
            one.first, one.count = one.first + taken, one.count - taken
            if not one.count:
                volume.ranges.remove(one)
            room -= taken
            ranges += bool(taken)
        return ranges, count

    # -- compaction --

    async def compact(self, stretch: Stretch) -> bool:
        volume, extent = self._alive(), stretch.extent
        if extent.inline is None and extent.slice_id in volume.freed_slices:
            raise InvalidArgument("slice id is garbage")
        if extent.inline is None and not any(
            one.session == self._session and one.first <= extent.slice_id < one.first + one.count
            for one in volume.ranges
        ):
            raise InvalidArgument("slice id of another session")
        node = volume.nodes.get(stretch.ino)
        if node is None or node.borrowed:
            return False
        if any(ref.slice_id in one.borrowed for one in volume.all_nodes() for ref in stretch.refs):
            return False
        chunk, end = extent.pos // CHUNK_SIZE, extent.pos + extent.length
        listed = {ref.slice_id for ref in stretch.refs}
        inside = [ref for ref in node.refs if ref.pos // CHUNK_SIZE == chunk]
        known = [number for number, ref in enumerate(inside) if ref.slice_id in listed]
        if not known:
            return False
        top = inside[known[-1]]
        newer = inside[known[-1] + 1 :]
        if top.pos < extent.pos or top.pos + top.length > end:
            return False
        if not all(ref in inside or _covered(ref, newer) for ref in stretch.refs):
            return False
        gone = [
            ref
            for ref in inside
            if ref.slice_id in stretch.hidden
            or (ref.slice_id in listed and extent.pos <= ref.pos and ref.pos + ref.length <= end)
        ]
        copy = SliceRef(
            extent.pos,
            extent.slice_id,
            extent.length,
            0,
            extent.length,
            extent.checksums,
            extent.inline,
        )
        _replace(node, gone, top, copy)
        volume.note_freed(node, gone)
        return True

    async def fragmented(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        found = []
        nodes = self._volume.nodes
        for ino in sorted(ino for ino in nodes if ino > after and not nodes[ino].borrowed):
            chunks = [ref.pos // CHUNK_SIZE for ref in self._volume.nodes[ino].refs]
            if any(chunks.count(chunk) >= refs for chunk in set(chunks)):
                found.append(ino)
        return found[:limit]

    # -- trash --

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        found = self._removed()
        return [one for one in found if after is None or _order(one) > _order(after)][:limit]

    async def list_trash_back(self, before: TrashPosition | None, limit: int) -> list[TrashEntry]:
        found = reversed(self._removed())
        return [one for one in found if before is None or _order(one) < _order(before)][:limit]

    def _removed(self) -> list[TrashEntry]:
        """All entries of the trash, the oldest first."""
        found = [_entry(one) for one in self._by_age()]
        found += [_entry(one, linked=True) for one in self._volume.removed_links.values()]
        return sorted(found, key=_order)

    async def place(self, ino: Ino) -> Place | None:
        volume = self._volume
        if ino in volume.trash:
            return Place(volume.trash[ino].parent, volume.trash[ino].name, alive=False)
        node = volume.nodes.get(ino)
        if node is None or not node.attr.is_dir:
            return None
        for name, entry in volume.nodes[node.parent].entries.items():
            if entry.ino == ino:
                return Place(node.parent, name, alive=True)
        return None

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        rules.check_name(name)
        volume = self._alive()
        directory = volume.directory(parent)
        rules.check_writable(parent)
        if name in directory.entries:
            raise Exists
        entry = volume.trash.get(ino)
        if link is not None:
            entry = volume.removed_links.get((ino, *link))
        if entry is None or not (ino in volume.trash or entry.node.attr.nlink):
            raise NotFound
        node = entry.node
        if node.attr.nlink >= LINK_MAX:
            raise TooManyLinks
        is_dir = node.attr.is_dir
        if ino not in volume.nodes:
            if volume.inodes_limit is not None and volume.inodes_used + 1 > volume.inodes_limit:
                raise QuotaExceeded
            volume.charge(node.use)
            volume.inodes_used += 1
            volume.nodes[ino] = node
        last = volume.trash.pop(ino, None)
        if link is not None:
            del volume.removed_links[ino, *link]
            if last is not None:
                volume.removed_links[ino, last.parent, last.name] = last
        directory.entries[name] = Entry(ino, volume.fresh_id())
        node.parent = parent
        volume.touch(directory, int(is_dir))
        return node.change(nlink=node.attr.nlink + 1 + is_dir)

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        volume = self._volume
        if until is None:
            until = datetime.now(UTC) - timedelta(seconds=volume.trash_seconds)
        freed = self._free([one for one in self._by_age() if one.deleted_at <= until][:limit])
        if freed:
            return freed
        return self._forget([key for key in self._links_by_age() if self._at(key) <= until][:limit])

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        volume = self._volume
        limit = None if volume.bytes_limit is None else volume.bytes_limit // share
        if volume.inodes_limit is not None:
            rows = min(rows, volume.inodes_limit // share)
        size = 0
        for count, one in enumerate(reversed(self._by_age()), 1):
            size += one.node.use
            if count > rows or (limit is not None and size > limit):
                return one.deleted_at
        return None

    async def thin_trash(self, keep: int, limit: int) -> int:
        names: dict[tuple[Ino, bytes], int] = {}
        links = self._volume.removed_links
        entries = [*self._volume.trash.values(), *links.values()]
        full = {one.parent for one in entries}
        surplus = []
        for one in sorted(entries, key=lambda one: one.deleted_at, reverse=True):
            key = (one.parent, one.name)
            names[key] = names.get(key, 0) + 1
            if names[key] > keep and one.node.attr.ino not in full:
                surplus.append(one)
        chosen = {id(one) for one in surplus[:limit]}
        count = self._forget([key for key, one in links.items() if id(one) in chosen])
        return count + self._free([one for one in self._by_age() if id(one) in chosen])

    async def thin_links(self, share: int, rows: int, limit: int) -> int:
        if self._volume.inodes_limit is not None:
            rows = min(rows, self._volume.inodes_limit // share)
        keys = self._links_by_age()
        return self._forget(keys[: max(0, min(limit, len(keys) - rows))])

    def _at(self, key: tuple[Ino, Ino, bytes]) -> datetime:
        return self._volume.removed_links[key].deleted_at

    def _links_by_age(self) -> list[tuple[Ino, Ino, bytes]]:
        return sorted(self._volume.removed_links, key=self._at)

    def _forget(self, keys: list[tuple[Ino, Ino, bytes]]) -> int:
        for key in keys:
            del self._volume.removed_links[key]
        return len(keys)

    def _by_age(self) -> list[Trashed]:
        trash = self._volume.trash.values()
        return sorted(trash, key=lambda one: (one.deleted_at, one.node.attr.ino))

    def _free(self, entries: list[Trashed]) -> int:
        volume = self._volume
        for one in entries:
            ino = one.node.attr.ino
            del volume.trash[ino]
            if ino not in volume.nodes:
                volume.free_slices(one.node)
        return len(entries)


def _covered(ref: SliceRef, newer: list[SliceRef]) -> bool:
    end = ref.pos + ref.length
    return any(other.pos <= ref.pos and other.pos + other.length >= end for other in newer)


def _replace(node: Node, gone: list[SliceRef], top: SliceRef, copy: SliceRef) -> None:
    """The copy takes the place of `top` in the order; the others that are gone just go."""
    refs: list[SliceRef] = []
    for ref in node.refs:
        if ref is top:
            refs.append(copy)
        elif ref not in gone:
            refs.append(ref)
    node.refs = refs


def _order(entry: TrashEntry | TrashPosition) -> tuple[datetime, Ino, Ino, bytes]:
    return (entry.deleted_at, entry.ino, entry.parent, entry.name)


def _entry(one: Trashed, *, linked: bool = False) -> TrashEntry:
    attr = one.node.attr
    return TrashEntry(
        attr.ino,
        one.parent,
        one.name,
        one.deleted_at,
        attr.mode,
        attr.uid,
        attr.gid,
        attr.size,
        attr.mtime_ns,
        attr.nlink,
        one.dir_mtime_ns,
        linked,
    )
