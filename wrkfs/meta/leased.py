"""A metadata store that keeps what leases allow: names, attributes and maps of leased directories.

Warm questions cost no round trip, and a file of a leased directory is opened without telling the
database (`light`). Rules: functions/1_leases.sql.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import NotFound, WrkfsError
from wrkfs.meta import rules
from wrkfs.meta.keeping import LeaseKeeping
from wrkfs.meta.sessions import boottime
from wrkfs.types import Dentry, FileMap, Ino, RenameFlags, SliceRef, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from wrkfs.meta.kept import Change, Kept, Key
    from wrkfs.types import Attr, Caller, Commit, Moved, SetAttr, Stretch

PREFETCH = 2048
"""Entries read at once of a directory that is leased."""
AHEAD = 8
"""Entries read ahead for each question about a single name; see `LeasedMeta._read_on`."""


def filled(before: FileMap, commit: Commit, attr: Attr) -> FileMap | None:
    """The map of an empty file after a first commit, answered with these attributes.

    None: not known. One version more is this commit of one ref, and no other. Later commits may
    be merged with what is there.
    """
    if before.refs or len(commit.extents) != 1 or attr.version != before.attr.version + 1:
        return None
    one = commit.extents[0]
    pos = one.pos + before.attr.size if commit.append else one.pos
    ref = SliceRef(pos, one.slice_id, one.length, 0, one.length, one.checksums, one.inline)
    return FileMap(attr, (ref,))


class LeasedMeta(LeaseKeeping):
    """See the module, and `interface.MetaStore` for every method."""

    def known(self, ino: Ino) -> Attr | None:
        """Attributes of an inode as far as they are kept."""
        return self._known(ino)

    def peek(self, parent: Ino, name: bytes) -> Attr | None:
        """Attributes of a name as far as they are kept."""
        kept = self._usable(parent)
        known = None if kept is None else kept.names.get(name)
        return None if known is None else self._attr(known.ino)

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """See MetaStore."""
        rules.check_name(name)
        kept = self._usable(parent)
        if kept is not None and not self._changes.touches((parent, name)):
            if name in kept.names:
                known = kept.names[name]
                if known is None:
                    raise NotFound(name)
                attr = self._attr(known.ino)
                if attr is not None:
                    return attr
            elif kept.whole:
                raise NotFound(name)
        await self._take(parent)
        mark = self._mark()
        if mark is None or parent not in self._kept:
            return await self._inner.lookup(parent, name)
        attr, settled = await self._inner.find(parent, name)
        kept = self._current(parent, mark) if settled else None
        if kept is not None:
            if attr is None:
                self._grow(1)
                kept.take_away(name)
            else:
                self._grow(1)
                kept.put(name, attr.ino)
                self._keep(attr, mark)
            await self._read_on(parent, kept)
        if attr is None:
            raise NotFound(name)
        return attr

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """See MetaStore."""
        found = self._listed(ino, after, limit)
        if found is not None:
            return found
        if after == 0:
            await self._take(ino)
        keeps = after == 0 and ino in self._kept and self._mark() is not None
        entries = await self._entries(ino, after, max(limit, PREFETCH) if keeps else limit)
        return entries[:limit]

    async def _read_on(self, directory: Ino, kept: Kept) -> None:
        """After many single questions about a directory some of its entries are read at once.

        Many of them are likely to be asked for next. So many are read as keep the cost of a walk
        small, and that of questions here and there in a large directory bounded.
        """
        kept.asked += 1
        if kept.whole or kept.asked < kept.reads_at or directory not in self._kept:
            return
        kept.reads_at *= 2
        after = 0 if kept.scan is None else kept.scan.last
        with suppress(WrkfsError):  # asked again when somebody wants it
            await self._entries(directory, after, min(PREFETCH, AHEAD * kept.asked))

    async def _entries(self, ino: Ino, after: int, many: int) -> list[Dentry]:
        """Entries from the database; they are kept where a lease covers them."""
        mark = self._mark()
        if mark is None or ino not in self._kept:
            return await self._inner.readdir(ino, after, many)
        entries, settled = await self._inner.entries(ino, after, many)
        kept = self._current(ino, mark) if settled else None
        if kept is not None:
            self._grow(3 * len(entries))  # names, attributes, and those of the scan
            for entry in entries:
                kept.put(entry.name, entry.attr.ino, entry.cookie)
                self._put_settled(entry.attr, mark)
            kept.scanned(after, entries, mark, end=len(entries) < many)
        return entries

    def _listed(self, ino: Ino, after: int, limit: int) -> list[Dentry] | None:
        kept = self._usable(ino)
        if kept is None or not kept.whole or self._changes.touches_names(ino):
            return None
        if kept.order is None:
            self._grow(len(kept.names))
        listing = kept.listing(after, limit)
        if listing is None:
            return None
        entries = []
        for cookie, name, child in listing:
            attr = kept.attrs.get(child)
            if attr is None or self._changes.touches(child):
                attr = self._attr(child)
                if attr is None:
                    return None
            entries.append(Dentry(cookie, name, attr))
        # Whether a directory has become empty, or was never read, is left to the database.
        return entries if entries or after else None

    async def parent(self, ino: Ino) -> Ino:
        """See MetaStore."""
        kept = self._usable(ino)
        if kept is not None and kept.own is not None and not self._changes.touches(ino):
            return kept.own.parent
        return await self._inner.parent(ino)

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """See MetaStore."""
        async with self._changing((parent, name), parent) as change:
            attr = await self._inner.mknod(parent, name, mode, rdev, caller)
            self._made(change, parent, name, attr)
        return attr

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """See MetaStore."""
        async with self._changing((parent, name), parent) as change:
            voids = self._voids
            with self._listening() as heard:
                attr = await self._inner.mkdir(parent, name, mode, caller)
            self._made(change, parent, name, attr)
            # It came with a lease, see `wrkfs.make`, unless that has been recalled or is void.
            if (
                voids == self._voids
                and not self._doubts
                and self._inner.can_lease
                and boottime() < self._inner.trusted_until
                and attr.ino not in heard
            ):
                made = self._adopt(attr.ino)
                made.whole = True
                made.own = attr
            else:
                self._let_go([attr.ino])
        return attr

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """See MetaStore."""
        async with self._changing((parent, name), parent) as change:
            attr = await self._inner.symlink(parent, name, target, caller)
            self._made(change, parent, name, attr)
        return attr

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """See MetaStore. What has two names is leased by nobody, so an open file is told."""
        async with self._changing((parent, name), parent, ino) as change:
            with self._light.barred():
                await self._light.sustain([ino])
                await self._uncover_inode(ino)
                attr = await self._inner.link(ino, parent, name)
            self._lose_attr(ino)
            kept = self._answered(change, parent)
            if kept is not None:
                if change.clean((parent, name)):
                    kept.put(name, ino)
                else:
                    kept.forget(name)
                kept.stamp_own(None)
        return attr

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        """See MetaStore."""
        return await self._removing(parent, name, lambda: self._inner.unlink(parent, name))

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        """See MetaStore."""
        return await self._removing(parent, name, lambda: self._inner.rmdir(parent, name), -1)

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """See MetaStore. What was kept of the tree is forgotten."""

        async def remove() -> None:
            await self._inner.remove_tree(parent, name, if_version=if_version)

        try:
            with self._light.barred():
                await self._light.sustain(self._light.all)
                await self._removing(parent, name, remove)
        finally:
            self._drop_all()
        await self._dropped()

    async def _removing(
        self,
        parent: Ino,
        name: bytes,
        call: Callable[[], Awaitable[int | None]],
        subdirectories: int = 0,
    ) -> int | None:
        kept = self._kept.get(parent)
        known = None if kept is None else kept.names.get(name)
        keys: list[Key] = [(parent, name), parent]
        if known is not None:
            keys.append(known.ino)
        async with self._changing(*keys) as change:
            with self._light.barred():
                await self._light.sustain(self._under(parent, name))
                moved_ns = await call()
            if known is None:
                await self._uncover(parent)
                self._lose_below(parent)
                if subdirectories:
                    self._forget_unplaced()
                    await self._dropped()
            else:
                # Open files are covered by nothing any more, nor what was in a directory.
                told = self._ended(known.ino)
                await self.on_drop((), {known.ino, *told})
                self._lose_attr(known.ino)
            kept = self._answered(change, parent)
            if kept is not None:
                if change.clean((parent, name)):
                    kept.take_away(name)
                else:
                    kept.forget(name)
                kept.stamp_own(moved_ns if change.clean(parent) else None, subdirectories)
        return moved_ns

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        """See MetaStore."""
        inos: list[Ino] = []
        replaced: Ino | None = None
        keys: set[Key] = {(parent, name), (new_parent, new_name), parent, new_parent}
        for at, what in ((parent, name), (new_parent, new_name)):
            kept = self._kept.get(at)
            known = None if kept is None else kept.names.get(what)
            if known is not None:
                keys.add(known.ino)
                inos.append(known.ino)
                if (at, what) == (new_parent, new_name):
                    replaced = known.ino
        async with self._changing(*keys) as change:
            with self._light.barred():
                # What is moved may come to where no lease covers it.
                await self._light.sustain(self._under(parent, name))
                await self._light.sustain(self._under(new_parent, new_name))
                if parent != new_parent:
                    self._lose_unknown(parent, name)
                    self._lose_unknown(new_parent, new_name)
                    await self._uncover(parent, new_parent)
                moved = await self._inner.rename(parent, name, new_parent, new_name, flags)
            if replaced is not None:
                # It may be open, and is covered by nothing any more.
                await self.on_drop((), {replaced})
            elif parent == new_parent and not self._knows(parent, new_name):
                await self._uncover(parent)
            within = parent == new_parent and not flags & RenameFlags.EXCHANGE
            if (
                moved is not None
                and within
                and self._renamed(change, parent, name, new_name, moved)
            ):
                return moved
            for ino in inos:
                self._lose_own(ino)
            for at, what in ((parent, name), (new_parent, new_name)):
                self._lose_unknown(at, what)
                kept = self._kept.get(at)
                if kept is not None:
                    kept.forget(what)
                    kept.stamp_own(None)
        return moved

    def _renamed(
        self, change: Change, directory: Ino, name: bytes, new_name: bytes, moved: Moved
    ) -> bool:
        """A name was moved within a directory: keeps what is known of it. False: too little is."""
        kept = self._answered(change, directory)
        if kept is None or not all(change.clean((directory, one)) for one in (name, new_name)):
            return False
        known, target = kept.names.get(name), kept.names.get(new_name)
        if known is None or (target is None and new_name not in kept.names and not kept.whole):
            return False
        cookie = moved.cookie
        if target is not None:
            if target.ino not in self._homes:
                return False
            self._lose_attr(target.ino)
            cookie = cookie or target.cookie
        kept.take_away(name)
        kept.take_away(new_name)
        kept.put(new_name, known.ino, cookie)
        attr = kept.attrs.get(known.ino)
        if attr is not None and change.clean(known.ino):
            self._put_attr(kept, replace(attr, ctime_ns=moved.at_ns))
        else:
            self._lose_own(known.ino)
        kept.stamp_own(moved.at_ns if change.clean(directory) else None)
        return True

    def _lose_unknown(self, parent: Ino, name: bytes) -> None:
        """A name changes: what it stands for is not known any more, whatever that is."""
        if not self._knows(parent, name):
            self._lose_below(parent)

    def _knows(self, parent: Ino, name: bytes) -> bool:
        """Whether it is kept what a name stands for."""
        kept = self._kept.get(parent)
        return kept is not None and (kept.whole or name in kept.names)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        """See MetaStore."""
        async with self._changing((parent, name), parent, ino):
            with self._light.barred():
                await self._light.sustain(self._under(parent, name))
                made = await self._inner.publish(
                    ino, parent, name, if_version=if_version, if_absent=if_absent
                )
            kept = self._kept.get(parent)
            if kept is not None:
                kept.forget(name)
                kept.stamp_own(None)
        return made

    async def restore(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """See UpkeepStore."""
        async with self._changing((parent, name), parent, ino):
            attr = await self._inner.restore(ino, parent, name)
            kept = self._kept.get(parent)
            if kept is not None:
                kept.forget(name)
                kept.stamp_own(None)
        return attr

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        """See MetaStore."""
        attr = self._attr(ino)
        if attr is not None:
            return attr
        if ino in self._folders:
            await self._take(ino)
        mark = self._mark()
        attr, settled = await self._inner.stat(ino)
        if attr.is_dir and ino not in self._kept:
            # Somebody is about to look into it, and its own lease covers its attributes.
            await self._take(ino)
            if ino in self._kept:
                mark = self._mark()
                attr, settled = await self._inner.stat(ino)
        if settled:
            self._keep(attr, mark)
        return attr

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """See MetaStore."""
        async with self._changing(ino) as change:
            attr = await self._inner.setattr(ino, changes)
            self._changed(change, attr)
        return attr

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        """See MetaStore."""
        async with self._changing(*atimes) as change:
            await self._inner.touch(atimes)
            for ino, at_ns in atimes.items():
                attr = self._known(ino)
                if attr is not None:
                    self._changed(change, replace(attr, atime_ns=max(attr.atime_ns, at_ns)))

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """See MetaStore."""
        async with self._changing(ino):
            await self._inner.setxattr(ino, name, value, flags)
            self._lose_own(ino)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """See MetaStore."""
        async with self._changing(ino):
            await self._inner.removexattr(ino, name)
            self._lose_own(ino)

    # -- files --

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
        """See MetaStore."""
        async with self._changing((parent, name), parent) as change:
            found, made = await self._inner.create(
                parent, name, mode, caller, exclusive=exclusive, durable=durable
            )
            if made:
                self._made(change, parent, name, found.attr)
                self._put_map(found)
        return found, made

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """See MetaStore. A file of a leased directory, with its map kept, costs nothing."""
        if not truncate:
            light = await self._open_lightly(ino)
            if light is not None:
                return light
            mark = self._mark()
            found = await self._inner.open(ino)
            self._keep_map(found, mark)
            return found
        async with self._changing(ino) as change:
            found = await self._inner.open(ino, truncate=True)
            self._changed(change, found.attr)
        return found

    async def _open_lightly(self, ino: Ino) -> FileMap | None:
        """Opens a file that a lease covers; None: the database must be told."""
        if not self._light.allowed or not self._kept:
            return None
        try:
            if self._attr(ino) is None:
                await self.getattr(ino)
            if not self._is_covered(ino):
                return None
            found = await self.file_map(ino)
        except NotFound:
            return None  # only just gone: `open` has it for a moment longer
        if not self._is_covered(ino):
            return None
        self._light.add(ino)
        return found

    def _is_covered(self, ino: Ino) -> bool:
        """Whether who takes the file's name away, here or elsewhere, has to ask for it first."""
        return self._light.allowed and self._attr(ino) is not None

    async def release(self, ino: Ino) -> None:
        """See MetaStore."""
        if not await self._light.release(ino):
            await self._inner.release(ino)

    async def file_map(self, ino: Ino) -> FileMap:
        """See MetaStore."""
        found = self._map(ino)
        if found is not None:
            return found
        mark = self._mark()
        found = await self._inner.file_map(ino)
        self._keep_map(found, mark)
        return found

    async def commit(self, commit: Commit) -> Attr:
        """See MetaStore."""
        before = self._map(commit.ino)
        async with self._changing(commit.ino) as change:
            attr = await self._inner.commit(commit)
            self._changed(change, attr)
            made = None if before is None else filled(before, commit, attr)
            if made is not None and change.clean(commit.ino):
                self._put_map(made)
        return attr

    async def compact(self, stretch: Stretch) -> bool:
        """See UpkeepStore."""
        async with self._changing(stretch.ino):
            done = await self._inner.compact(stretch)
            self._lose_attr(stretch.ino)
        return done

    def _under(self, parent: Ino, name: bytes) -> list[Ino]:
        """Files open without telling that a name may stand for."""
        kept = self._kept.get(parent)
        known = None if kept is None else kept.names.get(name)
        if known is not None:
            return [known.ino]
        return self._light.all
