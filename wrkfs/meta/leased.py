"""A metadata store that keeps what leases allow: names, attributes and maps of leased directories.

Warm questions cost no round trip, and a file of a leased directory is opened without telling the
database (`light`). Rules: functions/1_leases.sql.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import NotFound
from wrkfs.meta import rules
from wrkfs.meta.keeping import LeaseKeeping
from wrkfs.meta.sessions import boottime
from wrkfs.types import Dentry, Ino, RenameFlags, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from wrkfs.meta.kept import Key
    from wrkfs.types import Attr, Caller, Commit, FileMap, SetAttr, Stretch

PREFETCH = 2048
"""Entries read at once of a directory that is leased."""


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
        mark = self._mark()
        if mark is None or ino not in self._kept:
            return await self._inner.readdir(ino, after, limit)
        many = limit if after else max(limit, PREFETCH)
        entries, settled = await self._inner.entries(ino, after, many)
        kept = self._current(ino, mark) if settled else None
        if kept is not None:
            self._grow(3 * len(entries))  # names, attributes, and those of the scan
            for entry in entries:
                kept.put(entry.name, entry.attr.ino, entry.cookie)
                self._put_settled(entry.attr, mark)
            kept.scanned(after, entries, mark, end=len(entries) < many)
        return entries[:limit]

    def _listed(self, ino: Ino, after: int, limit: int) -> list[Dentry] | None:
        kept = self._usable(ino)
        if kept is None or not kept.whole or self._changes.touches_names(ino):
            return None
        entries = []
        for cookie, name, child in kept.listing(after, limit) or ():
            attr = self._attr(child)
            if attr is None:
                return None
            entries.append(Dentry(cookie, name, attr))
        # Whether a directory has become empty, or was never read, is left to the database.
        return entries or None

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

    async def unlink(self, parent: Ino, name: bytes) -> None:
        """See MetaStore."""
        await self._removing(parent, name, lambda: self._inner.unlink(parent, name))

    async def rmdir(self, parent: Ino, name: bytes) -> None:
        """See MetaStore."""
        await self._removing(parent, name, lambda: self._inner.rmdir(parent, name))

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """See MetaStore. What was kept of the tree is forgotten."""
        try:
            with self._light.barred():
                await self._light.sustain(self._light.all)
                await self._removing(
                    parent,
                    name,
                    lambda: self._inner.remove_tree(parent, name, if_version=if_version),
                )
        finally:
            self._drop_all()

    async def _removing(
        self, parent: Ino, name: bytes, call: Callable[[], Awaitable[None]]
    ) -> None:
        kept = self._kept.get(parent)
        known = None if kept is None else kept.names.get(name)
        keys: list[Key] = [(parent, name), parent]
        if known is not None:
            keys.append(known.ino)
        async with self._changing(*keys) as change:
            with self._light.barred():
                await self._light.sustain(self._under(parent, name))
                await call()
            if known is None:
                await self._uncover(parent)
                self._lose_below(parent)
            else:
                # Open files are covered by nothing any more.
                await self.on_drop((), {known.ino})
                self._lose_attr(known.ino)
                self._forget_directory(known.ino)
            kept = self._answered(change, parent)
            if kept is not None:
                if change.clean((parent, name)):
                    kept.take_away(name)
                else:
                    kept.forget(name)
                kept.stamp_own(None)

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> None:
        """See MetaStore."""
        inos: list[Ino] = []
        keys: set[Key] = {(parent, name), (new_parent, new_name), parent, new_parent}
        for at, what in ((parent, name), (new_parent, new_name)):
            kept = self._kept.get(at)
            known = None if kept is None else kept.names.get(what)
            if known is not None:
                keys.add(known.ino)
                inos.append(known.ino)
        async with self._changing(*keys):
            with self._light.barred():
                # What is moved may come to where no lease covers it.
                await self._light.sustain(self._under(parent, name))
                await self._light.sustain(self._under(new_parent, new_name))
                if parent != new_parent:
                    self._lose_unknown(parent, name)
                    self._lose_unknown(new_parent, new_name)
                    await self._uncover(parent, new_parent)
                await self._inner.rename(parent, name, new_parent, new_name, flags)
            for ino in inos:
                self._lose_attr(ino)
                moved = self._kept.get(ino)
                if moved is not None:
                    moved.own = None
            for at, what in ((parent, name), (new_parent, new_name)):
                self._lose_unknown(at, what)
                kept = self._kept.get(at)
                if kept is not None:
                    kept.forget(what)
                    kept.stamp_own(None)

    def _lose_unknown(self, parent: Ino, name: bytes) -> None:
        """A name changes: what it stands for is not known any more, whatever that is."""
        kept = self._kept.get(parent)
        if kept is None or (name not in kept.names and not kept.whole):
            self._lose_below(parent)

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
        self, parent: Ino, name: bytes, mode: int, caller: Caller, *, exclusive: bool
    ) -> tuple[FileMap, bool]:
        """See MetaStore."""
        async with self._changing((parent, name), parent) as change:
            found, made = await self._inner.create(parent, name, mode, caller, exclusive=exclusive)
            if made:
                self._made(change, parent, name, found.attr)
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
        async with self._changing(commit.ino) as change:
            attr = await self._inner.commit(commit)
            self._changed(change, attr)
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
