"""Reading ahead: one call returns the directories that a reader is about to visit.

A visit is a listing, or the second look-up of a name in a directory that the session has leased. It
reads the whole directory in one call. The second visit in a tree begins a walk: its call also
leases the next directories. The visit of one of those reads many of them in one call, and leases
the next ones. So no lease is younger than the snapshot of its answer.

The reader decides how far this goes (`Credit`): directories and contents that it uses pay for more,
and those that it does not use exhaust the credit. Recalls and own changes halve it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from wrkfs.errors import Unavailable, WrkfsError
from wrkfs.layout import INLINE_MAX, KIB, MIB
from wrkfs.meta.interface.trees import TreeRequest
from wrkfs.meta.leases.cached_directory import inline_bytes
from wrkfs.meta.leases.frontier import Credit, Frontier
from wrkfs.types import FileMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.interface.trees import Listing, TreeAnswer
    from wrkfs.meta.leases.cached_directory import Mark
    from wrkfs.meta.leases.lease_table import LeaseTable
    from wrkfs.meta.leases.lifecycle import LeaseLifecycle
    from wrkfs.types import Dentry, Ino

ENTRIES = 2048
"""Maximum number of entries in one call, for a listing or a walk."""
SECOND_LOOKUP = 256
"""Maximum number of entries that a second look-up reads of a directory."""
DIRECTORIES = 128
"""Maximum number of directories in one call."""
LEASES = 256
"""Maximum number of leases that one call takes."""
FIRST_DIRECTORIES = 16
"""Directories that are read ahead before the reader has used any."""
CONTENT = 1 * MIB
"""Maximum number of bytes of contents in one call."""
FIRST_CONTENT = 128 * KIB
"""Bytes of contents that are read ahead before the reader has used any."""
MISSED = 64 * KIB
"""Bytes of contents that may be read ahead after the open of a file whose map is not cached."""
CONTENT_ROOM = 16 * MIB
"""Maximum number of bytes of cached contents."""
_UNUSED = 1024
"""Maximum number of directories that are remembered as unused."""
_MAP = 256
"""Bytes that a cached map takes without its contents."""
_PIECE = 256
"""Entries that are cached before other tasks run."""


class ReadAhead:
    """Visits of directories, and what was read ahead of them.

    Critical section: `_reading` contains the directories of each call until its answer is cached;
    another visit of them waits for that call. Leases of an answer enter the table in the step that
    receives it.
    """

    def __init__(self, inner: LeaseStore, table: LeaseTable, leases: LeaseLifecycle) -> None:
        self._inner = inner
        self._table = table
        self._leases = leases
        self._next = Frontier()
        """Subdirectories of visited directories that were not read yet."""
        self._unfilled = Frontier()
        """Directories that were read, but without all maps of their files."""
        self._credit = Credit(FIRST_DIRECTORIES, 2 * DIRECTORIES)
        self._content_credit = Credit(FIRST_CONTENT, 4 * CONTENT)
        self._unused: OrderedDict[Ino, None] = OrderedDict()
        """Directories that were read ahead, and not used yet."""
        self._contents: OrderedDict[Ino, int] = OrderedDict()
        """Files whose maps were read ahead, with the bytes of each."""
        self._unopened: set[Ino] = set()
        self._content_bytes = 0
        self._reading: dict[Ino, asyncio.Future[None]] = {}
        leases.on_recall = self.recalled

    # -- what the reader does --

    def used(self, directory: Ino) -> None:
        """Record that the cache answered a listing or a look-up in the directory."""
        if directory in self._unused:
            del self._unused[directory]
            self._credit.earn(2)

    def opened(self, ino: Ino) -> None:
        """Record that the cache returned the map of a file."""
        if ino in self._unopened:
            self._unopened.discard(ino)
            self._content_credit.earn(2 * self._contents[ino])

    def expects(self, directory: Ino) -> bool:
        """Return True if the directory was leased for this reader, and not read yet."""
        return (
            directory in self._next
            and directory in self._table.directories
            and self._table.mark() is not None
        )

    async def wait(self, directory: Ino) -> None:
        """Wait for a call that reads this directory, if there is one."""
        pending = self._reading.get(directory)
        if pending is not None:
            await asyncio.shield(pending)

    async def wait_for_calls(self) -> None:
        """Wait for the calls that are under way now."""
        pending = set(self._reading.values())
        if pending:
            await asyncio.wait(pending)

    async def visit(self, directory: Ino, limit: int = ENTRIES) -> list[Dentry] | None:
        """Read a directory from its beginning, and further ones if the reader walks a tree.

        Returns at least `limit` of its entries, or all. Returns None if the answer is in the cache
        at most: another visit reads the directory, or the session has no lease. Raises Unavailable.
        """
        return await self._alone(directory, limit)

    async def fill(self, ino: Ino) -> None:
        """Read maps of a file that is being read, of the next files, and of the next directories.

        Does nothing if a visit has not left maps out, or if the reader reads no files otherwise,
        or if the map of the next file is cached: then the reader goes backwards or at random.
        """
        home = self._table.homes.get(ino)
        cached = None if home is None else self._table.directories.get(home)
        if home is None or cached is None or home not in self._unfilled:
            return
        if not self._content_credit.left:
            self._content_credit.earn(MISSED)
            return
        cookie, following = cached.position(ino)
        if following in cached.maps:
            return
        self._content_credit.earn(MISSED)
        await self._alone(home, ENTRIES, maps_after=max(0, cookie - 1))

    def recalled(self, directories: Iterable[Ino]) -> None:
        """Record recalls: another session changes these directories."""
        for directory in directories:
            if directory in self._unused or directory in self._next:
                self._unused.pop(directory, None)
                self._credit.halve()
                self._content_credit.halve()

    # -- the calls --

    async def _alone(
        self, directory: Ino, limit: int, maps_after: int | None = None
    ) -> list[Dentry] | None:
        """Make a call, unless another one reads the directory.

        `maps_after` is the cookie after which the call reads maps. None: the call is a visit.
        """
        pending = self._reading.get(directory)
        if pending is not None:
            await asyncio.shield(pending)
            return None
        pending = asyncio.get_running_loop().create_future()
        self._reading[directory] = pending
        try:
            await self._leases.take(directory)
            mark = self._table.mark()
            if mark is None or directory not in self._table.directories:
                return None
            if maps_after is None:
                request = self._visit_request(directory, limit)
            else:
                request = self._map_request(directory, maps_after)
            self._reading.update(dict.fromkeys(request.directories, pending))
            return await self._read(request, mark)
        finally:
            for ino in [ino for ino, call in self._reading.items() if call is pending]:
                del self._reading[ino]
            pending.set_result(None)

    def _map_request(self, directory: Ino, after: int) -> TreeRequest:
        """Return the request for maps of a directory from a cookie on, and of the next ones."""
        for ino in self._unfilled.following(directory):
            if ino not in self._table.directories:
                self._unfilled.discard(ino)
        more = self._readable(self._unfilled.following(directory), DIRECTORIES - 1)
        content = min(CONTENT, self._content_credit.left)
        return TreeRequest((directory, *more), ENTRIES, content, maps_only=True, after=after)

    def _visit_request(self, directory: Ino, limit: int) -> TreeRequest:
        """Return the request for a visit, with the directories that the reader will want next."""
        content = min(CONTENT, self._content_credit.left)
        cached = self._table.directories[directory]
        if cached.complete and directory not in self._unfilled:
            content = 0
        if directory not in self._next:
            return TreeRequest((directory,), limit, content)
        self._credit.earn(1)
        following = self._next.following(directory)
        ahead = self._readable(following, min(DIRECTORIES - 1, self._credit.left))
        waiting = sum(ino in self._table.directories for ino in following) - len(ahead)
        leases = max(0, min(LEASES, 2 * self._credit.left - waiting))
        unleased = [ino for ino in following if ino not in self._table.directories]
        take = unleased[: leases // 2]
        return TreeRequest(
            (directory, *ahead),
            max(limit, ENTRIES),
            content,
            take=tuple(take),
            leases=leases - len(take),
        )

    def _readable(self, directories: Sequence[Ino], most: int) -> list[Ino]:
        """Return the first leased directories that no call reads now."""
        readable: list[Ino] = []
        for ino in directories:
            if len(readable) >= most:
                break
            if ino in self._table.directories and ino not in self._reading:
                readable.append(ino)
        return readable

    async def _read(self, request: TreeRequest, mark: Mark) -> list[Dentry] | None:
        """Send a request, adopt its leases, and cache its answer."""
        leases, directory = self._leases, request.directories[0]
        with leases.listening() as recalled:
            moment = leases.moment(recalled)
            try:
                answer = await self._inner.read_tree(request)
            except Unavailable:
                raise
            except WrkfsError:
                # One of the directories has impossible rows. The caller reads its own directory.
                for ino in request.directories:
                    self._next.discard(ino)
                    self._unfilled.discard(ino)
                self._credit.halve()
                return None
            leases.adopt_ahead(answer.leased, moment, recalled)
        self._advance(request, answer)
        await self._cache(answer, request, mark)
        entries = [listing for listing in answer.listings if listing.attr.ino == directory]
        return [entry.dentry for entry in entries[0].entries] if entries else None

    def _advance(self, request: TreeRequest, answer: TreeAnswer) -> None:
        """Move the reader's position beyond the directories of an answer."""
        returned = {listing.attr.ino for listing in answer.listings}
        listed = [ino for ino in request.directories if ino in returned]
        reached = request.directories.index(listed[-1]) if listed else 0
        for ino in request.directories[: reached + 1]:
            if ino not in returned:
                self._next.discard(ino)
                self._unfilled.discard(ino)
        if request.maps_only:
            return
        for listing in answer.listings:
            children = (
                entry.dentry.attr.ino for entry in listing.entries if entry.dentry.attr.is_dir
            )
            self._next.replace(listing.attr.ino, [ino for ino in children if not self._knows(ino)])

    def _knows(self, directory: Ino) -> bool:
        cached = self._table.directories.get(directory)
        return cached is not None and cached.complete

    # -- caching answers --

    async def _cache(self, answer: TreeAnswer, request: TreeRequest, mark: Mark) -> None:
        """Cache an answer. Other tasks run in between, so each directory is checked by itself."""
        entries, first = 0, request.directories[0]
        for listing in answer.listings:
            if self._table.changes.mark != mark.stamp:
                # An own change or a recall crossed the answer.
                self._credit.halve()
                self._content_credit.halve()
                return
            ino = listing.attr.ino
            is_part = ino == first and request.after > 0
            content = self._cache_listing(listing, mark, is_part=is_part)
            self._content_credit.spend(content)
            if ino != first and ino not in self._unused:
                self._unused[ino] = None
                self._credit.spend(1)
                if len(self._unused) > _UNUSED:
                    self._unused.popitem(last=False)
            entries += len(listing.entries)
            if entries >= _PIECE:
                entries = 0
                await asyncio.sleep(0)

    def _cache_listing(self, listing: Listing, mark: Mark, *, is_part: bool) -> int:
        """Cache one directory, or a part that does not begin with its first entry.

        Returns the number of bytes of its maps.
        """
        table, ino = self._table, listing.attr.ino
        table.grow(3 * len(listing.entries) + 1)
        cached = table.current(ino, mark)
        if cached is None or not listing.settled:
            return 0
        was_filled = cached.complete and ino not in self._unfilled
        cached.attr = listing.attr
        for entry in listing.entries:
            dentry = entry.dentry
            cached.put(dentry.name, dentry.attr.ino, dentry.cookie)
            if entry.settled:
                table.add_settled(dentry.attr, mark)
        if not is_part:
            dentries = [entry.dentry for entry in listing.entries]
            if listing.complete or not cached.complete:
                cached.add_scan(0, dentries, mark, end=listing.complete)
            if listing.complete and not dentries:
                cached.put_empty()
        content = 0
        for entry in listing.entries:
            attr = entry.dentry.attr
            file_map = entry.file_map
            if file_map is None and attr.is_file and not attr.size:
                file_map = FileMap(attr, ())
            if file_map is not None and entry.settled:
                content += self._put_map(file_map)
        if listing.filled and not is_part:
            self._unfilled.discard(ino)
        elif not was_filled:
            self._unfilled.append(ino)
        return content

    def _put_map(self, file_map: FileMap) -> int:
        """Cache a map, and drop the oldest ones beyond CONTENT_ROOM. Returns its bytes."""
        ino, size = file_map.attr.ino, _MAP + inline_bytes(file_map)
        if not self._table.put_map(file_map, INLINE_MAX):
            return 0
        self._content_bytes += size - self._contents.pop(ino, 0)
        self._contents[ino] = size
        self._unopened.add(ino)
        while self._content_bytes > CONTENT_ROOM:
            oldest, oldest_size = self._contents.popitem(last=False)
            self._content_bytes -= oldest_size
            self._unopened.discard(oldest)
            home = self._table.drop_map(oldest)
            if home is not None:
                self._unfilled.append(home)
        return size
