"""A metadata store that answers from what its leases let it cache.

Leases cover the names, attributes and maps of directories. A cached answer costs no round trip, and
a file of a leased directory is opened without a row in the database (`UnrecordedOpens`). Rules:
functions/1_leases.sql.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import NotFound
from wrkfs.meta import rules
from wrkfs.meta.leases.copies import LeasedCopies
from wrkfs.meta.leases.lease_table import ROOM, LeaseTable
from wrkfs.meta.leases.lifecycle import LeaseLifecycle
from wrkfs.meta.leases.listings import Listings
from wrkfs.meta.leases.read_ahead import ReadAhead
from wrkfs.types import Dentry, FileMap, Ino, RenameFlags, SliceRef, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.leases.cached_directory import Change, Key
    from wrkfs.types import Attr, Caller, Commit, Moved, SessionId, SetAttr, Spot, Stretch


def filled(before: FileMap, commit: Commit, attr: Attr) -> FileMap | None:
    """Return the map of an empty file after its first commit, answered with these attributes.

    Returns None if the map is unknown. If the version grew by one, it grew by this commit of one
    ref. Later commits may be merged with the refs already there.
    """
    if before.refs or len(commit.extents) != 1 or attr.version != before.attr.version + 1:
        return None
    extent = commit.extents[0]
    pos = extent.pos + before.attr.size if commit.append else extent.pos
    length = extent.length
    ref = SliceRef(pos, extent.slice_id, length, 0, length, extent.checksums, extent.inline)
    return FileMap(attr, (ref,))


class LeasedMeta:
    """Names and files with a cache under leases. Upkeep uses the inner store.

    Implements `NodeStore`; the protocol documents each method.
    """

    def __init__(self, inner: LeaseStore, *, room: int = ROOM) -> None:
        """`room` is the maximum number of cached names and attributes."""
        self._inner = inner
        self.table = LeaseTable(inner, room=room)
        self.leases = LeaseLifecycle(inner, self.table)
        self.ahead = ReadAhead(inner, self.table, self.leases)
        self.listings = Listings(inner, self.table, self.ahead)
        self.copies = LeasedCopies(inner, self.table, self.leases)
        # No lease covers these answers: the inner store gives them.
        self.readlink, self.statfs, self.sync = inner.readlink, inner.statfs, inner.sync
        self.getxattr, self.listxattr = inner.getxattr, inner.listxattr
        self.create_unlinked, self.reserve_slices = inner.create_unlinked, inner.reserve_slices
        self.give_up, self.drop_ranges = inner.give_up, inner.drop_ranges

    # -- the session --

    @property
    def session(self) -> SessionId:
        """Number of the registered session."""
        return self._inner.session

    @property
    def epoch(self) -> int:
        """Generation of the registration."""
        return self._inner.epoch

    async def start(self) -> None:
        """Start the inner store, then the work for the leases."""
        await self._inner.start()
        self.leases.start()

    async def close(self) -> None:
        """Stop the work for the leases, then end the session."""
        await self.leases.close()
        await self._inner.close()

    async def rejoin(self) -> None:
        """Drop all leases and register again."""
        self.leases.reset()
        await self._inner.rejoin()

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """Set the function for crashes; before each call, all leases become void."""

        def crashed(lost: bool) -> None:
            self.leases.void()
            on_crash(lost)

        self._inner.watch(crashed)

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        rules.check_name(name)
        if rules.is_unlisted(parent, name):
            return await self._inner.lookup(parent, name)  # the cache has only names of listings
        table = self.table
        attr = self._known(parent, name)
        if attr is None and await self._visit_expected(parent, name):
            attr = self._known(parent, name)
        if attr is not None:
            return attr
        await self.leases.take(parent)
        mark = table.mark()
        if mark is None or parent not in table.directories:
            return await self._inner.lookup(parent, name)
        attr, settled = await self._inner.find(parent, name)
        cached = table.current(parent, mark) if settled else None
        if cached is not None:
            table.grow(1)
            if attr is None:
                cached.put_absent(name)
            else:
                cached.put(name, attr.ino)
                table.add(attr, mark)
            await self.listings.looked_up(parent, cached)
        if attr is None:
            raise NotFound(name)
        return attr

    def _known(self, parent: Ino, name: bytes) -> Attr | None:
        """Return the cached attributes of a name; None if the database must answer.

        Raises NotFound if the cache knows that the name does not exist.
        """
        table = self.table
        cached = table.usable(parent)
        if cached is None or table.changes.touches((parent, name)):
            return None
        if name not in cached.names:
            if cached.complete:
                self.ahead.used(parent)
                raise NotFound(name)
            return None
        entry = cached.names[name]
        if entry is None:
            raise NotFound(name)
        self.ahead.used(parent)
        return table.attr(entry.ino)

    async def _visit_expected(self, parent: Ino, name: bytes) -> bool:
        """Read a directory that a walk leased ahead, if the look-up needs it."""
        ino = self.table.ino_of(parent, name)
        for directory in (parent, ino):
            if directory is not None and self.ahead.expects(directory):
                await self.ahead.visit(directory)
                return True
        return False

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        return await self.listings.read(ino, after, limit)

    async def parent(self, ino: Ino) -> Ino:
        table = self.table
        if table.attr(ino) is None:
            await self.ahead.wait(ino)  # a listing also returns the attributes
        attr = table.attr(ino)
        if attr is None or not attr.is_dir:
            return await self._inner.parent(ino)
        return attr.parent

    async def create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        exclusive: bool,
        durable: bool = False,
    ) -> tuple[FileMap, bool]:
        async with self.leases.changing((parent, name), parent) as change:
            file_map, is_new = await self._inner.create(
                parent, name, mode, caller, exclusive=exclusive, durable=durable
            )
            if is_new:
                self.table.add_created(change, parent, name, file_map.attr)
                self.table.put_map(file_map)
        return file_map, is_new

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        async with self.leases.changing((parent, name), parent) as change:
            attr = await self._inner.mknod(parent, name, mode, rdev, caller)
            self.table.add_created(change, parent, name, attr)
        return attr

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        leases = self.leases
        async with leases.changing((parent, name), parent) as change:
            voids = leases.voids
            with leases.listening() as recalled:
                attr = await self._inner.mkdir(parent, name, mode, caller)
            self.table.add_created(change, parent, name, attr)
            leases.adopt_created(attr, voids, recalled)
        return attr

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        async with self.leases.changing((parent, name), parent) as change:
            attr = await self._inner.symlink(parent, name, target, caller)
            self.table.add_created(change, parent, name, attr)
        return attr

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Give a non-directory another name.

        No lease covers a file with two names, so an open file is recorded first.
        """
        leases = self.leases
        async with leases.changing((parent, name), parent, ino) as change:
            with leases.opens.barred():
                await leases.opens.sustain([ino])
                await leases.uncover_inode(ino)
                attr = await self._inner.link(ino, parent, name)
            self.table.drop_file(ino)
            cached = self.table.changed_directory(change, parent)
            if cached is not None:
                if change.is_latest((parent, name)):
                    cached.put(name, ino)
                else:
                    cached.forget(name)
                cached.stamp(None)
        return attr

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        return await self._remove(parent, name, lambda: self._inner.unlink(parent, name))

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        return await self._remove(parent, name, lambda: self._inner.rmdir(parent, name), -1)

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """Remove a name and everything below it. The table gives all leases back."""

        async def remove() -> None:
            await self._inner.remove_tree(parent, name, if_version=if_version)

        opens = self.leases.opens
        try:
            with opens.barred():
                await opens.sustain(opens.all)
                await self._remove(parent, name, remove, is_tree=True)
        finally:
            self.leases.give_back_all()
        await self.leases.wait_dropped()

    async def _remove(
        self,
        parent: Ino,
        name: bytes,
        call: Callable[[], Awaitable[int | None]],
        subdirectories: int = 0,
        *,
        is_tree: bool = False,
    ) -> int | None:
        """Remove a name by `call`, and update the cache.

        `subdirectories` is the change of the number of directories in the parent.
        """
        table, leases = self.table, self.leases
        ino = table.ino_of(parent, name)
        inos, is_sure = table.inodes_of((parent, name))
        keys: list[Key] = [(parent, name), parent, *inos]
        async with leases.changing(*keys, is_open_ended=is_tree or not is_sure) as change:
            with leases.opens.barred():
                await leases.opens.sustain(self._opens_of(parent, name))
                at_ns = await call()
            if ino is None:
                await leases.uncover(parent)
                table.drop_below(parent)
                if subdirectories:
                    leases.give_back_unplaced()
                    await leases.wait_dropped()
            else:
                # Leases no longer cover the inode, nor the contents of a removed directory.
                inos = leases.remove(ino)
                await table.on_drop((), {ino, *inos})
                table.drop_file(ino)
            cached = table.changed_directory(change, parent)
            if cached is not None:
                if change.is_latest((parent, name)):
                    cached.put_absent(name)
                else:
                    cached.forget(name)
                cached.stamp(at_ns if change.is_latest(parent) else None, subdirectories)
        return at_ns

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        table, leases = self.table, self.leases
        target = table.ino_of(new_parent, new_name)
        names = (parent, name), (new_parent, new_name)
        inos, is_sure = table.inodes_of(*names)
        keys: set[Key] = {*names, parent, new_parent, *inos}
        async with leases.changing(*keys, is_open_ended=not is_sure) as change:
            with leases.opens.barred():
                # The new place of a moved file may have no lease.
                await leases.opens.sustain(self._opens_of(parent, name))
                await leases.opens.sustain(self._opens_of(new_parent, new_name))
                if parent != new_parent:
                    table.drop_unknown(parent, name)
                    table.drop_unknown(new_parent, new_name)
                    await leases.uncover(parent, new_parent)
                moved = await self._inner.rename(parent, name, new_parent, new_name, flags)
            if target is not None:
                # The replaced inode may be open, and leases no longer cover it.
                is_gone = moved and not flags & RenameFlags.EXCHANGE
                ended = leases.remove(target) if is_gone and target in table.directories else ()
                await table.on_drop((), {target, *ended})
            elif parent == new_parent and not table.knows(parent, new_name):
                await leases.uncover(parent)
            within = parent == new_parent and not flags & RenameFlags.EXCHANGE
            if within and moved and self._renamed(change, parent, name, new_name, moved):
                return moved
            for ino in inos:
                table.drop_attr(ino)
            for directory, changed_name in names:
                table.drop_unknown(directory, changed_name)
                cached = table.directories.get(directory)
                if cached is not None:
                    cached.forget(changed_name)
                    cached.stamp(None)
        return moved

    def _renamed(
        self, change: Change, directory: Ino, name: bytes, new_name: bytes, moved: Moved
    ) -> bool:
        """Update the cache after a rename in one directory; return False if it knows too little."""
        table = self.table
        cached = table.changed_directory(change, directory)
        if cached is None or not all(change.is_latest((directory, n)) for n in (name, new_name)):
            return False
        entry, target = cached.names.get(name), cached.names.get(new_name)
        if entry is None or (
            target is None and new_name not in cached.names and not cached.complete
        ):
            return False
        cookie = moved.cookie
        if target is not None:
            if target.ino not in table.homes:
                return False
            table.drop_file(target.ino)
            cookie = cookie or target.cookie
        cached.put_absent(name)
        cached.put_absent(new_name)
        cached.put(new_name, entry.ino, cookie)
        attr = cached.attrs.get(entry.ino)
        if attr is not None and change.is_latest(entry.ino):
            table.put_attr(cached, replace(attr, ctime_ns=moved.at_ns))
        else:
            table.drop_attr(entry.ino)
        cached.stamp(moved.at_ns if change.is_latest(directory) else None)
        return True

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        opens = self.leases.opens
        replaced, is_sure = self.table.inodes_of((parent, name))
        keys: set[Key] = {(parent, name), parent, ino, *replaced}
        async with self.leases.changing(*keys, is_open_ended=not is_sure):
            with opens.barred():
                await opens.sustain(self._opens_of(parent, name))
                is_new = await self._inner.publish(
                    ino, parent, name, if_version=if_version, if_absent=if_absent
                )
            # The replaced inode may be open, and leases no longer cover it.
            await self.table.on_drop((), replaced)
            for one in replaced:
                self.table.drop_attr(one)
            self.table.drop_unknown(parent, name)
            self._forget(parent, name)
        return is_new

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        """Give an inode in the trash a name.

        A linked entry may give an inode its second name, as `link` does.
        """
        leases = self.leases
        async with leases.changing((parent, name), parent, ino):
            if link is None:
                attr = await self._inner.restore(ino, parent, name)
            else:
                with leases.opens.barred():
                    await leases.opens.sustain([ino])
                    await leases.uncover_inode(ino)
                    attr = await self._inner.restore(ino, parent, name, link)
                self.table.drop_file(ino)
            self._forget(parent, name)
        return attr

    def _forget(self, parent: Ino, name: bytes) -> None:
        cached = self.table.directories.get(parent)
        if cached is not None:
            cached.forget(name)
            cached.stamp(None)

    def _opens_of(self, parent: Ino, name: bytes) -> list[Ino]:
        """Return the unrecorded open files that a name may refer to."""
        ino = self.table.ino_of(parent, name)
        return self.leases.opens.all if ino is None else [ino]

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        table = self.table
        attr = table.attr(ino)
        if attr is None and self.ahead.expects(ino):
            await self.ahead.visit(ino)
            attr = table.attr(ino)
        if attr is not None:
            return attr
        if ino in table.folders:
            await self.leases.take(ino)
        mark = table.mark()
        attr, settled = await self._inner.stat(ino)
        if attr.is_dir and ino not in table.directories:
            # Calls in the directory are likely to follow, and its lease covers its attributes.
            await self.leases.take(ino)
            if ino in table.directories:
                mark = table.mark()
                attr, settled = await self._inner.stat(ino)
        if settled:
            table.add(attr, mark)
        return attr

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        async with self.leases.changing(ino) as change:
            attr = await self._inner.setattr(ino, changes)
            self.table.add_changed(change, attr)
        return attr

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        table = self.table
        # A change under way keeps answers out of the cache, and access times can wait.
        await self.ahead.wait_for_calls()
        async with self.leases.changing(*atimes) as change:
            await self._inner.touch(atimes)
            for ino, at_ns in atimes.items():
                attr = table.known(ino)
                if attr is not None:
                    atime_ns = max(attr.atime_ns, at_ns)
                    table.add_changed(change, replace(attr, atime_ns=atime_ns))

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        async with self.leases.changing(ino):
            await self._inner.setxattr(ino, name, value, flags)
            self.table.drop_attr(ino)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        async with self.leases.changing(ino):
            await self._inner.removexattr(ino, name)
            self.table.drop_attr(ino)

    # -- files --

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """Open a file. With a lease and a cached map, this costs no round trip."""
        if not truncate:
            light = await self._open_lightly(ino)
            if light is not None:
                return light
            mark = self.table.mark()
            file_map = await self._inner.open(ino)
            self.table.add_map(file_map, mark)
            return file_map
        async with self.leases.changing(ino) as change:
            file_map = await self._inner.open(ino, truncate=True)
            self.table.add_changed(change, file_map.attr)
        return file_map

    def open_now(self, ino: Ino) -> Attr | None:
        """Open a regular file that a lease covers, without its map; None if `open` must do it.

        Costs no round trip. The file needs its `release`, or `release_now`.
        """
        attr = self.table.attr(ino)
        if attr is None or not attr.is_file or not self.leases.opens.allowed:
            return None
        self.leases.opens.add(ino)
        return attr

    def release_now(self, ino: Ino) -> bool:
        """Release an open file if that costs no round trip; return whether it did."""
        return self.leases.opens.release_now(ino)

    async def _open_lightly(self, ino: Ino) -> FileMap | None:
        """Open a file that a lease covers; None if the database must record the open."""
        opens = self.leases.opens
        if not opens.allowed or not self.table.directories:
            return None
        try:
            if self.table.attr(ino) is None:
                await self.getattr(ino)
            attr = self.table.attr(ino)
            if attr is None or not attr.is_file or not self._is_covered(ino):
                return None  # the database has the error for what is no file
            file_map = await self.file_map(ino)
        except NotFound:
            return None  # removed just now: `open` of the inner store may still answer
        if not self._is_covered(ino):
            return None
        opens.add(ino)
        return file_map

    def _is_covered(self, ino: Ino) -> bool:
        """Return True if no session can remove the file's name without recording the open first."""
        return self.leases.opens.allowed and self.table.attr(ino) is not None

    async def release(self, ino: Ino) -> None:
        if not await self.leases.opens.release(ino):
            await self._inner.release(ino)

    async def file_map(self, ino: Ino) -> FileMap:
        file_map = self.table.file_map(ino)
        if file_map is None:
            await self.ahead.fill(ino)
            file_map = self.table.file_map(ino)
        if file_map is not None:
            self.ahead.opened(ino)
            return file_map
        mark = self.table.mark()
        file_map = await self._inner.file_map(ino)
        self.table.add_map(file_map, mark)
        return file_map

    async def commit(self, commit: Commit) -> Attr:
        before = self.table.file_map(commit.ino)
        async with self.leases.changing(commit.ino) as change:
            attr = await self._inner.commit(commit)
            self.table.add_changed(change, attr)
            file_map = None if before is None else filled(before, commit, attr)
            if file_map is not None and change.is_latest(commit.ino):
                self.table.put_map(file_map)
        return attr

    async def allocate(self, ino: Ino, start: int, length: int, *, clear: bool, grow: bool) -> Attr:
        async with self.leases.changing(ino) as change:
            attr = await self._inner.allocate(ino, start, length, clear=clear, grow=grow)
            self.table.add_changed(change, attr)
        return attr

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        async with self.leases.changing(target) as change:
            attr = await self._inner.copy_range(source, start, target, to, length)
            self.table.add_changed(change, attr)
        return attr

    async def compact(self, stretch: Stretch) -> bool:
        async with self.leases.changing(stretch.ino):
            replaced = await self._inner.compact(stretch)
            self.table.drop_file(stretch.ino)
        return replaced
