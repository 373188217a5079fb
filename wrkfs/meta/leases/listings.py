"""Listings of leased directories, from the cache or by a visit, and what look-ups read ahead."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from wrkfs.errors import WrkfsError
from wrkfs.meta.leases.read_ahead import SECOND_LOOKUP
from wrkfs.types import Dentry

if TYPE_CHECKING:
    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.leases.cached_directory import CachedDirectory
    from wrkfs.meta.leases.lease_table import LeaseTable
    from wrkfs.meta.leases.read_ahead import ReadAhead
    from wrkfs.types import Ino

PREFETCH = 2048
"""Maximum number of entries that one call reads ahead of look-ups in a directory."""
AHEAD = 8
"""Entries read ahead for each look-up of a single name; see `Listings.looked_up`."""


class Listings:
    """Answers listings of directories, and reads entries ahead of look-ups."""

    def __init__(self, inner: LeaseStore, table: LeaseTable, ahead: ReadAhead) -> None:
        self._inner = inner
        self._table = table
        self._ahead = ahead

    async def read(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """Return the entries of a directory after a cookie, as `NameStore.readdir` does."""
        listed = self._cached(ino, after, limit)
        if listed is None and after == 0:
            child = self._expected_child(ino, limit)
            if child is not None:
                await self._ahead.visit(child)
                listed = self._cached(ino, after, limit)
            if listed is None:
                listed = await self._ahead.visit(ino, limit)
                if listed is None:
                    listed = self._cached(ino, after, limit)
        if listed is None:
            return await self._entries(ino, after, limit)
        return listed[:limit]

    def _expected_child(self, ino: Ino, limit: int) -> Ino | None:
        """Return a subdirectory that a listing needs and that a walk leased ahead."""
        cached = self._table.usable(ino)
        listing = None if cached is None else cached.listing(0, limit)
        if not listing:
            return None
        return next((child for _, _, child in listing if self._ahead.expects(child)), None)

    async def looked_up(self, directory: Ino, cached: CachedDirectory) -> None:
        """Read entries of a directory ahead after a look-up of a name that was not cached.

        The next look-ups are likely to ask for these entries. The second look-up is a visit. After
        that, the number of entries bounds the cost of scattered look-ups in a large directory.
        """
        cached.misses += 1
        if cached.complete or cached.misses < cached.prefetch_at:
            return
        if directory not in self._table.directories:
            return
        cached.prefetch_at *= 2
        with suppress(WrkfsError):  # a later call reads them when it needs them
            if cached.scan is None:
                await self._ahead.visit(directory, SECOND_LOOKUP)
            else:
                number = min(PREFETCH, max(SECOND_LOOKUP, AHEAD * cached.misses))
                await self._entries(directory, cached.scan.last, number)

    async def _entries(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """Return entries from the database, and cache them if a lease covers them."""
        table = self._table
        mark = table.mark()
        if mark is None or ino not in table.directories:
            return await self._inner.readdir(ino, after, limit)
        entries, settled = await self._inner.entries(ino, after, limit)
        cached = table.current(ino, mark) if settled else None
        if cached is not None:
            table.grow(3 * len(entries))  # names, attributes, and the names of the scan
            for entry in entries:
                cached.put(entry.name, entry.attr.ino, entry.cookie)
                table.add_settled(entry.attr, mark)
            cached.add_scan(after, entries, mark, end=len(entries) < limit)
        return entries

    def _cached(self, ino: Ino, after: int, limit: int) -> list[Dentry] | None:
        """Return entries from the cache; None if it does not know all of them."""
        table = self._table
        cached = table.usable(ino)
        if cached is None or not cached.complete or table.changes.touches_names(ino):
            return None
        if cached.order is None:
            table.grow(len(cached.names))
        listing = cached.listing(after, limit)
        if listing is None:
            return None
        entries = []
        for cookie, name, child in listing:
            attr = cached.attrs.get(child)
            if attr is None or table.changes.touches(child):
                attr = table.attr(child)
                if attr is None:
                    return None
            entries.append(Dentry(cookie, name, attr))
        self._ahead.used(ino)
        return entries
