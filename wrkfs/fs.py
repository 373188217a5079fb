"""The drive: `Filesystem`, a POSIX filesystem on inodes.

It knows neither FUSE nor HTTP nor permissions. The metadata store answers names and attributes,
from what leases let it keep or from the database, so what one session has done is seen by every
other at once; only the dirty bytes of files that are open here are known here alone, for at most
200 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from wrkfs.attribute_cache import AttributeCache
from wrkfs.config import Limits
from wrkfs.data.diskcache import open_cache
from wrkfs.data.s3 import S3Blocks
from wrkfs.dirty import DirtyBudget
from wrkfs.errors import (
    Doubtful,
    Fenced,
    Missing,
    NoData,
    NotFound,
    Stale,
    StorageError,
    Unavailable,
    WrkfsError,
)
from wrkfs.handle import FileHandle, OpenFile
from wrkfs.layout import FileLayout
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.meta.rules import check_namespace
from wrkfs.reader import BlockReader
from wrkfs.stores import Stores
from wrkfs.types import RenameFlags, SetAttr, XattrFlags
from wrkfs.write_path import REFUSED, SliceIds, WritePath

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wrkfs.config import VolumeConfig
    from wrkfs.data.diskcache import DiskCache
    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.reader import CacheUsage
    from wrkfs.types import Attr, BytesLike, Caller, Dentry, FileMap, Ino, Spot, StatFs

    T = TypeVar("T")

UNDONE = "the database crashed and has lost changes that no fsync had covered"
"""What is said of changes that were answered and are gone."""
DEFAULT_LIMITS = Limits()
FILE_CAPABILITIES = b"security.capability"
"""Never set: the drive is mounted nosuid."""
REJOIN_TRIES = 3
"""Registrations in one rejoining: each may be fenced before all files are open again."""


class Filesystem:
    """One volume, as one session sees and changes it.

    Critical sections:

    - `_files` gains an entry and the entry its handle in one step; an entry leaves with its last
      handle, after the dirty bytes are committed.
    - `_rejoin_lock` is held from the end of an epoch until all files are open in the next.
    - What leaves here goes through `_shown` in the same step: it is never older than own changes.
    """

    def __init__(
        self,
        store: MetaStore,
        blocks: BlockStore,
        *,
        leased: LeasedMeta | None = None,
        prefix: str = "volume",
        limits: Limits = DEFAULT_LIMITS,
        disk: DiskCache | None = None,
    ) -> None:
        """Take over started stores and a disk cache; `leased` caches names and files of `store`."""
        self._meta = meta = leased or store
        self._blocks = blocks
        self._files: dict[Ino, OpenFile] = {}
        self.leases = leased.table if leased else None
        """The leases of this session, if it caches answers."""
        self._shown = AttributeCache(meta, leased.table.known if leased else lambda _: None)
        self.note_read, self.is_read_due = self._shown.note_read, self._shown.is_read_due
        self._rejoin_lock = asyncio.Lock()
        self._reader = BlockReader(blocks, prefix, limits.blocks, disk)
        ids, budget = SliceIds(meta), DirtyBudget(limits.dirty)
        self._path = WritePath(meta, blocks, prefix, ids, self._rejoin, budget, joined=meta.epoch)
        self._losses = self.crashes = 0
        """`crashes`: of the database. Versions that were seen before one may step back after it."""
        self.stores = Stores(meta, store, blocks, self._reader, prefix, self._path.give_up_slices)
        self.hold = self.stores.holds.holding
        """A context in which the objects stay that files consist of when it begins."""
        meta.watch(self._crashed)
        store.watch_snapshots(self.stores.holds.oldest)

    @classmethod
    async def connect(
        cls,
        config: VolumeConfig,
        *,
        kind: str = "mount",
        limits: Limits = DEFAULT_LIMITS,
        leases: bool = False,
    ) -> Filesystem:
        """Registers a session of the volume; with `leases` it keeps answers. Raises Unavailable."""
        store = PostgresMeta(config, kind=kind, leases=leases)
        leased = LeasedMeta(store) if leases else None
        await (leased or store).start()
        disk, blocks = await open_cache(config, limits), S3Blocks(config.store)
        prefix = config.store.prefix
        return cls(store, blocks, leased=leased, prefix=prefix, limits=limits, disk=disk)

    async def close(self) -> None:
        """Commits what is dirty, ends the session. Idempotent; losses are raised at the end."""
        await self.stores.dismiss()
        lost: WrkfsError | None = None
        for file in list(self._files.values()):
            for handle in list(file.handles):
                try:
                    await handle.close()
                except WrkfsError as error:
                    lost = error
        while self._path.tasks:
            await asyncio.gather(*self._path.tasks, return_exceptions=True)
        await self._path.drop_ranges()
        await self._shown.atimes.close()
        await self._reader.close()
        await self._blocks.close()
        await self._meta.close()
        if lost is not None:
            raise lost

    @property
    def cache_usage(self) -> CacheUsage:
        """What the caches of blocks hold."""
        return self._reader.usage

    @property
    def load(self) -> tuple[int, int]:
        """Bytes written and not committed yet, and the number of open files."""
        return self._path.budget.used, len(self._files)

    @property
    def losses(self) -> int:
        """How often a crash of the database has undone changes that were answered here."""
        return self._losses

    async def keep(self) -> bool:
        """Makes durable what any session has committed, whatever this one has lost.

        False: the database crashed meanwhile, and what was seen before may not be so any more.
        """
        crashes = self.crashes
        await self._path.sync_all()
        return self.crashes == crashes

    async def sync(self, since: int | None = None) -> None:
        """Everything answered so far survives a crash, dirty bytes of open files included.

        StorageError when `losses` has grown beyond `since` (default: during this call).
        """
        files = list(self._files.values())
        since = self._losses if since is None else since
        await asyncio.gather(*(file.writer.commit(durable=False) for file in files))
        await self.sync_names(since)

    async def sync_names(self, since: int | None = None) -> None:
        """Names and attributes answered so far survive a crash (fsync of a directory); see sync."""
        since = self._losses if since is None else since
        await self._path.sync_all()
        if self._losses != since:
            raise StorageError(UNDONE)

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """Attributes of a name. NotFound, NotDirectory."""
        return await self._present(self._shown.asked, await self._meta.lookup(parent, name))

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """Entries with cookie > `after`, without `.` and `..`; [] at the end."""
        asked = self._shown.asked
        entries = await self._meta.readdir(ino, after, limit)
        self.note_read(ino)
        for number, entry in enumerate(entries):
            if entry.attr.ino in self._files:
                attr = await self._present(asked, entry.attr)
            else:
                attr = self._shown.tell(asked, entry.attr, None)
            if attr is not entry.attr:
                entries[number] = replace(entry, attr=attr)
        return entries

    async def parent(self, ino: Ino) -> Ino:
        """The parent of a directory; the root is its own."""
        return await self._meta.parent(ino)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """Creates a directory. Exists, NotFound, QuotaExceeded."""
        return await self._change(lambda: self._meta.mkdir(parent, name, mode, caller))

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """Creates a regular file, fifo, socket or device node."""
        return await self._change(lambda: self._meta.mknod(parent, name, mode, rdev, caller))

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """Creates a symbolic link."""
        return await self._change(lambda: self._meta.symlink(parent, name, target, caller))

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Another name for a non-directory."""
        asked = self._shown.asked
        attr = await self._change(lambda: self._meta.link(ino, parent, name))
        return await self._present(asked, attr)

    async def unlink(self, parent: Ino, name: bytes) -> None:
        """Removes a name of a non-directory."""
        await self._change(lambda: self._meta.unlink(parent, name))

    async def rmdir(self, parent: Ino, name: bytes) -> None:
        """Removes an empty directory."""
        await self._change(lambda: self._meta.rmdir(parent, name))

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """Removes a name with everything below it; see MetaStore."""
        await self._change(lambda: self._meta.remove_tree(parent, name, if_version=if_version))

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        """Gives something of the trash a name; see `MetaStore.restore`, and `trash.restore`."""
        return await self._change(lambda: self._meta.restore(ino, parent, name, link))

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> None:
        """Moves a name, replacing the target as rename(2) does."""
        await self._change(lambda: self._meta.rename(parent, name, new_parent, new_name, flags))

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        """Attributes; size and mtime count bytes that are still dirty here."""
        return await self._present(self._shown.asked, await self._meta.getattr(ino))

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """Applies changes, in order with the writes of this session."""
        file, asked = self._files.get(ino), self._shown.asked
        if file is None:
            return await self._setattr(ino, changes)
        if changes.size is not None:
            async with file.writer.resizing():
                attr = await self._setattr(ino, changes)
        elif changes.mtime_ns is not None or changes.mtime_now:
            async with file.writer.between_commits():
                attr = await self._setattr(ino, changes)
                file.writer.set_mtime(attr.mtime_ns)
        else:
            attr = await self._setattr(ino, changes)
        return await self._present(asked, attr)

    async def readlink(self, ino: Ino) -> bytes:
        """Target of a symbolic link."""
        target = await self._meta.readlink(ino)
        self.note_read(ino)
        return target

    # -- files --

    async def file_map(self, ino: Ino) -> FileMap:
        """What a file consists of, as committed."""
        return await self._meta.file_map(ino)

    async def open(self, ino: Ino, flags: int) -> FileHandle:
        """Opens a regular file; O_TRUNC, O_APPEND, O_SYNC and the access mode are honoured."""
        truncate = bool(flags & os.O_TRUNC)
        file = self._files.get(ino)
        if truncate and file is not None:
            async with file.writer.resizing():
                return await self._open(ino, flags, truncate)
        return await self._open(ino, flags, truncate)

    async def open_snapshot(self, ino: Ino) -> FileHandle:
        """Opens a regular file for reading as it is committed now: one version, `attr`'s."""
        hold = self.stores.holds.begin()
        try:
            file_map, epoch = await self._opening(
                lambda: self._meta.open(ino),
                lambda found: self._meta.open(found.attr.ino),
            )
            handle = self._handle(file_map, os.O_RDONLY, epoch)
            handle.fixed = FileLayout(file_map)
        except BaseException:
            self.stores.holds.end(hold)
            raise
        handle.hold = hold
        return handle

    async def create(
        self, parent: Ino, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Attr, FileHandle]:
        """Creates, or with no O_EXCL opens, a regular file. Exists, IsDirectory, NotFound."""
        new, asked = bool(flags & os.O_EXCL), self._shown.asked
        durable, until = self._path.makes_empty, self._path.changes
        (file_map, made), epoch = await self._opening(
            lambda: self._meta.create(parent, name, mode, caller, exclusive=new, durable=durable),
            lambda found: self._meta.open(found[0].attr.ino),
        )
        handle = self._handle(file_map, flags, epoch)
        if made:
            handle.file.writer.made(durable_until=until if durable else None)
        try:
            if not made and flags & os.O_TRUNC:
                handle.attr = await self.setattr(handle.ino, SetAttr(size=0, mtime_now=True))
            return await self._present(asked, handle.attr), handle
        except BaseException:
            with contextlib.suppress(WrkfsError):
                await handle.close()
            raise

    async def create_unlinked(self, mode: int, caller: Caller) -> FileHandle:
        """A file with no name, for writing; it vanishes unless it is published."""
        file_map, epoch = await self._opening(
            lambda: self._meta.create_unlinked(mode, caller),
            lambda found: self._meta.open(found.attr.ino),
        )
        return self._handle(file_map, os.O_RDWR, epoch)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        """Names an unlinked file, durably, with all its bytes or not at all; see MetaStore."""
        file = self._files.get(ino)
        if file is not None:
            # Durable: a crash must not take bytes away between this and the naming.
            await file.writer.commit(durable=True, others=False)
            for handle in file.handles:
                if handle.error is not None:
                    raise handle.error
        until = self._path.changes
        made, _ = await self._path.attempt(
            lambda: self._meta.publish(
                ino, parent, name, if_version=if_version, if_absent=if_absent
            )
        )
        self._path.note_durable(until)
        return made

    # -- the volume, extended attributes --

    async def statfs(self) -> StatFs:
        """Exact use and limits."""
        return await self._meta.statfs()

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """Value of an attribute. NoData; NotSupported for namespaces that are not stored."""
        if name == FILE_CAPABILITIES:
            # The kernel asks for it before every write(2): answered without a round trip.
            raise NoData
        check_namespace(name)
        return await self._meta.getxattr(ino, name)

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """Sets an attribute. NotSupported for namespaces that are not stored."""
        check_namespace(name)
        await self._change(lambda: self._meta.setxattr(ino, name, value, flags))

    async def listxattr(self, ino: Ino) -> list[bytes]:
        """Names of all attributes."""
        return await self._meta.listxattr(ino)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """Removes an attribute. NoData."""
        check_namespace(name)
        await self._change(lambda: self._meta.removexattr(ino, name))

    # -- for FileHandle and Writer --

    async def read(self, file: OpenFile, offset: int, size: int, ahead: int) -> BytesLike:
        """Bytes of an open file: committed by anyone before this call, or dirty here."""
        await file.writer.settle()
        # Dirty bytes first: what a commit moves to the database meanwhile is found there.
        dirty = file.writer.overlay(offset, offset + size)
        dirty_end = file.writer.end
        if len(dirty) == 1 and len(dirty[0][1]) == size:
            return dirty[0][1]
        layout = await self._layout(file)
        end = min(offset + size, max(layout.size, dirty_end))
        try:
            data = await self._bytes(layout, offset, end, ahead)
        except Missing:
            # A compaction replaces slices of a version that is known here; their objects go.
            file.layout = None
            fresh = await self._layout(file)
            if fresh.between(offset, end) == layout.between(offset, end):
                raise
            end = min(offset + size, max(fresh.size, dirty_end))
            data = await self._bytes(fresh, offset, end, ahead)
        if not dirty or not data:
            return data
        merged = bytearray(data)
        for pos, piece in dirty:
            merged[pos - offset : pos - offset + len(piece)] = piece
        return merged

    async def read_fixed(
        self, handle: FileHandle, layout: FileLayout, offset: int, size: int, ahead: int
    ) -> BytesLike:
        """Bytes of a snapshot: slices are immutable, so no round trip asks for news."""
        end = min(offset + size, layout.size)
        try:
            return await self._bytes(layout, offset, end, ahead)
        except Missing:
            fresh = FileLayout(await self._meta.file_map(handle.ino))
            if self.stores.holds.expired(handle.hold):
                raise Unavailable("the snapshot is too old, its bytes are not kept") from None
            if fresh.version != layout.version or fresh.between(offset, end) == layout.between(
                offset, end
            ):
                raise
            handle.fixed = fresh
            return await self._bytes(fresh, offset, end, ahead)

    async def _bytes(self, layout: FileLayout, start: int, end: int, ahead: int) -> BytesLike:
        return b"" if end <= start else await self._reader.read(layout, start, end, ahead)

    async def let_go(self, handle: FileHandle, file: OpenFile, *, others: bool) -> None:
        """The end of a handle: its bytes are committed, then the inode is released."""
        task = asyncio.create_task(self._let_go(handle, file, others))
        self._path.tasks.add(task)
        task.add_done_callback(self._path.tasks.discard)
        # Who waits no longer does not tear it: who opens the file meanwhile must meet its bytes.
        await asyncio.shield(task)

    async def _let_go(self, handle: FileHandle, file: OpenFile, others: bool) -> None:
        try:
            if handle.writable:
                await file.writer.commit(durable=True, others=others)
        finally:
            self.stores.holds.end(handle.hold)
            file.handles.discard(handle)
            if not file.handles and self._files.get(file.ino) is file:
                del self._files[file.ino]
        if handle.epoch == self._meta.epoch:
            try:
                await self._meta.release(file.ino)
            except Fenced:
                # The epoch has ended, and all its open files with it.
                return

    def learn(self, attr: Attr) -> None:
        """Keeps the attributes after an own change, unless newer ones are known."""
        self._shown.learn(attr)

    def note_fragmented(self, ino: Ino) -> None:
        """A file may have many refs: upkeep should look at it."""
        self.stores.note_fragmented(ino)

    # -- inside --

    async def _present(self, asked: int, attr: Attr) -> Attr:
        """Attributes as this session must show them: no older than its own writes and reads."""
        file = self._files.get(attr.ino)
        if file is not None:
            await file.writer.settle()
        return self._shown.tell(asked, attr, file)

    async def _layout(self, file: OpenFile) -> FileLayout:
        """The file's layout as of now: one round trip, two when someone has changed the file."""
        known = self._shown.known.get(file.ino)
        layout = file.layout
        if layout is not None and (known is None or known.version <= layout.version):
            attr = await self._meta.getattr(file.ino)
            # After a crash of the database the same version may mean other bytes.
            if attr.version == layout.version and file.layout is not None:
                return layout
        layout = FileLayout(self.stores.noted(await self._meta.file_map(file.ino)))
        if file.layout is None or file.layout.version <= layout.version:
            file.layout = layout
        return layout

    async def _setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        if changes.atime_ns is not None or changes.atime_now:
            await self._shown.atimes.forget(ino)
        attr = await self._change(lambda: self._meta.setattr(ino, changes))
        self.learn(attr)
        return attr

    async def _open(self, ino: Ino, flags: int, truncate: bool) -> FileHandle:
        file_map, epoch = await self._opening(
            lambda: self._meta.open(ino, truncate=truncate),
            lambda found: self._meta.open(found.attr.ino),
        )
        handle = self._handle(file_map, flags, epoch)
        if truncate:
            self.learn(file_map.attr)
            self._path.note_change()
        return handle

    async def _opening(
        self, call: Callable[[], Awaitable[T]], again: Callable[[T], Awaitable[object]]
    ) -> tuple[T, int]:
        """Opens, and once more when the epoch changed meanwhile; the epoch it is open in."""
        found, epoch = await self._path.attempt(call)
        while epoch != self._meta.epoch:
            epoch = self._meta.epoch
            await again(found)
        return found, epoch

    def _handle(self, file_map: FileMap, flags: int, epoch: int) -> FileHandle:
        ino = file_map.attr.ino
        file = self._files.get(ino)
        if file is None:
            file = self._files[ino] = OpenFile(self, ino, self._path)
        if file.layout is None or file.layout.version <= file_map.attr.version:
            file.layout = FileLayout(self.stores.noted(file_map))
        handle = FileHandle(self, file, file_map.attr, flags, epoch)
        file.handles.add(handle)
        return handle

    async def _change(self, call: Callable[[], Awaitable[T]]) -> T:
        """Makes a change, and notes that it waits to become durable. See `WritePath.attempt`."""
        done, _ = await self._path.attempt(call)
        self._path.note_change()
        return done

    def _crashed(self, lost: bool) -> None:
        """The database came back from a crash: versions may have stepped back. See MetaStore."""
        self.crashes += 1
        self._shown.known.clear()
        for file in self._files.values():
            file.layout = None
        if lost:
            self._losses += 1
            for file in self._files.values():
                file.lose(StorageError(UNDONE))

    async def _rejoin(self, epoch: int) -> None:
        """See `Rejoin`. A file that cannot be opened again fails alone."""
        async with self._rejoin_lock:
            for _ in range(REJOIN_TRIES):
                if self._meta.epoch == epoch:
                    for file in self._files.values():
                        file.layout = None
                        file.writer.refuse(Fenced(REFUSED))
                    await self._meta.rejoin()
                try:
                    await self._reopen_all()
                except (Fenced, Doubtful):
                    epoch = self._meta.epoch  # this one has been fenced as well
                else:
                    self._path.joined = self._meta.epoch
                    return
            raise Fenced("the session is cut off again and again")

    async def _reopen_all(self) -> None:
        """Every handle of an older epoch, also of a file that was opened during the rejoining."""
        for file in list(self._files.values()):
            for handle in list(file.handles):
                if handle.epoch != self._meta.epoch:
                    await self._reopen(file, handle)

    async def _reopen(self, file: OpenFile, handle: FileHandle) -> None:
        """Opens a handle's file in the present epoch. Unavailable, Fenced, Doubtful: not yet."""
        try:
            await self._meta.open(file.ino)
        except (Unavailable, Fenced, Doubtful):
            raise
        except WrkfsError as error:
            absent = isinstance(error, NotFound | Stale)
            lost = Stale("the file vanished while the session was cut off") if absent else error
            file.writer.fail(lost)
            file.lose(lost)
        else:
            if handle not in file.handles:
                await self._meta.release(file.ino)
                return
        handle.epoch = self._meta.epoch
