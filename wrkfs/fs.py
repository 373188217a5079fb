"""The drive: `Filesystem`, a POSIX filesystem on inodes.

The module does not know FUSE, HTTP or permissions. The metadata store returns names and attributes,
from its leases or from the database. So every session sees a change as soon as its call returns.
The only exception is dirty bytes of files that are open here: other sessions see them after at most
200 ms.

`wrkfs.open_files` reads and closes open files. `wrkfs.recovery` restores the session after a fence
or a crash of the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from wrkfs.attribute_cache import AttributeCache
from wrkfs.config import Limits
from wrkfs.data.diskcache import open_cache
from wrkfs.data.s3 import S3Blocks
from wrkfs.dirty import DirtyBudget
from wrkfs.errors import NoData, StorageError, WrkfsError
from wrkfs.layout import FileLayout
from wrkfs.locks.manager import LockManager
from wrkfs.meta.delegations.replay import replay_left, replay_opened
from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.meta.postgres.links import CallCount, WatchCall, unwatched
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.meta.rules import check_namespace, check_writable
from wrkfs.open_files import FileRanges, OpenFileTable
from wrkfs.reader import BlockReader
from wrkfs.recovery import UNDONE, Recovery
from wrkfs.stores import Stores
from wrkfs.types import RenameFlags, SetAttr, Statistics, XattrFlags
from wrkfs.write_path import SliceIds, WritePath

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from wrkfs.config import VolumeConfig
    from wrkfs.data.diskcache import DiskCache
    from wrkfs.data.interface import BlockStore
    from wrkfs.handle import FileHandle, OpenFile
    from wrkfs.meta.delegations.replay import OpenJournals
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.reader import CacheUsage
    from wrkfs.types import Attr, Caller, Dentry, FileMap, Ino, Snapshot, Spot, StatFs

    T = TypeVar("T")

DEFAULT_LIMITS = Limits()
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_TRUNC
"""Flags of an open that may change the file."""
FILE_CAPABILITIES = b"security.capability"
"""Name of an extended attribute that no file has: the drive is mounted nosuid."""


def _never(_ino: Ino) -> bool:
    return False


class Filesystem:
    """One volume, as one session sees and changes it.

    Critical section: attributes that leave this class pass through `_attributes` in the same step.
    So they are never older than the changes of this session. For other state see `OpenFileTable`
    and `Recovery`.
    """

    def __init__(
        self,
        store: MetaStore,
        blocks: BlockStore,
        *,
        leased: LeasedMeta | DelegatedMeta | None = None,
        prefix: str = "volume",
        limits: Limits = DEFAULT_LIMITS,
        disk: DiskCache | None = None,
    ) -> None:
        """Take over started stores and a disk cache; `leased` caches names and files of `store`."""
        self._meta = meta = leased or store
        delays = isinstance(leased, DelegatedMeta)
        self._blocks = blocks
        self._calls = CallCount(unwatched)
        self._files: dict[Ino, OpenFile] = {}
        self._is_durable = leased.is_durable if isinstance(leased, DelegatedMeta) else _never
        self.leases = leased.table if leased else None
        """The leases of this session, if it caches answers."""
        self.losses = 0
        """Number of database crashes that undid changes which this session had answered."""
        self.crashes = 0
        """Number of database crashes. Each one may set file versions back."""
        leased_attr = leased.table.known if leased else lambda _: None
        self._attributes = AttributeCache(meta, leased_attr)
        self.note_read = self._attributes.note_read
        self.is_read_due = self._attributes.is_read_due
        self._recovery = Recovery(meta, self._files, self._attributes)
        self._reader = BlockReader(blocks, prefix, limits.blocks, disk)
        self._write_path = WritePath(
            meta,
            blocks,
            prefix,
            SliceIds(meta),
            self._recovery.rejoin,
            DirtyBudget(limits.dirty),
            joined=meta.epoch,
            durable_close=limits.durable_close or not delays,
        )
        self.locks = LockManager(store.locks, self._write_path, self._files)
        self._recovery.on_fence = self.locks.lose_all
        give_up = self._write_path.give_up_slices
        upkeep = leased.upkeep if isinstance(leased, DelegatedMeta) else store.upkeep
        self.stores = Stores(meta, upkeep, blocks, self._reader, prefix, give_up)
        self._table = OpenFileTable(
            self._files, self.stores, self._write_path, self._attributes, leased
        )
        self.ranges = FileRanges(meta, self._table, self._attributes, self._change)
        """Holes and copies of ranges of open files."""
        self.hold = self.stores.holds.hold
        """Return a context that keeps every object that a file uses when the context begins."""
        meta.watch(self._on_crash)
        upkeep.watch_snapshots(self.stores.holds.oldest)

    @classmethod
    async def connect(
        cls,
        config: VolumeConfig,
        *,
        kind: str = "mount",
        limits: Limits = DEFAULT_LIMITS,
        leases: bool = False,
        journals: Path | None = None,
        journals_left: OpenJournals | None = None,
        watch_call: WatchCall = unwatched,
    ) -> Filesystem:
        """Register a session of the volume; with `leases` it caches answers.

        With leases and a directory for `journals`, it also takes write delegations: it answers
        changes from its journal and sends them later. Without leases it only replays the journals
        of dead processes, in that directory or in the one that `journals_left` opens.
        `watch_call` sees every call of the metadata database. Raises Unavailable.
        """
        delays = leases and journals is not None and not limits.durable_close
        calls = CallCount(watch_call)
        store = PostgresMeta(config, kind=kind, leases=leases, delegates=delays, watch_call=calls)
        leased: LeasedMeta | DelegatedMeta | None = None
        if delays and journals is not None:
            leased = DelegatedMeta(store, config.schema, journals)
        elif leases:
            leased = LeasedMeta(store)
        elif journals is not None:
            store.watch_journals(partial(replay_left, store, config.schema, journals))
        if journals_left is not None:
            store.watch_journals(partial(replay_opened, store, config.schema, journals_left))
        await (leased or store).start()
        disk, blocks = await open_cache(config, limits), S3Blocks(config.store)
        prefix = config.store.prefix
        fs = cls(store, blocks, leased=leased, prefix=prefix, limits=limits, disk=disk)
        fs._calls = calls
        return fs

    async def close(self) -> None:
        """Commit dirty bytes and end the session. Raises lost writes at the end. Idempotent."""
        await self.stores.cancel_tasks()
        loss = await self._table.close()
        while self._write_path.tasks:
            await asyncio.gather(*self._write_path.tasks, return_exceptions=True)
        await self.locks.close()
        await self._write_path.drop_ranges()
        await self._attributes.atimes.close()
        await self._reader.close()
        await self._blocks.close()
        await self._meta.close()
        if loss is not None:
            raise loss

    @property
    def cache_usage(self) -> CacheUsage:
        """Size of the block caches."""
        return self._reader.usage

    @property
    def load(self) -> tuple[int, int]:
        """Number of bytes that are written and not committed, and number of open files."""
        return self._write_path.budget.used, len(self._files)

    @property
    def statistics(self) -> Statistics:
        """Totals of this session, and its work that waits."""
        meta = self._meta
        unsent, flushes = meta.flushing if isinstance(meta, DelegatedMeta) else (0, 0)
        cache, path = self._reader.usage, self._write_path
        return Statistics(
            leases=0 if self.leases is None else len(self.leases.directories),
            recalls_total=0 if self.leases is None else self.leases.recalls,
            unsent_changes=unsent,
            flushes_total=flushes,
            queued_uploads=path.queued_uploads,
            running_uploads=path.running_uploads,
            cache_hits_total=cache.hits,
            cache_misses_total=cache.misses,
            cache_disk_hits_total=cache.disk_hits,
            metadata_calls_total=self._calls.total,
        )

    async def make_durable(self) -> bool:
        """Make everything durable that any session has committed, whatever this session lost.

        Return False if the database crashed during the call: the crash may undo earlier visible
        changes.
        """
        crashes = self.crashes
        await self._write_path.sync_all()
        return self.crashes == crashes

    async def sync(self, since: int | None = None) -> None:
        """Make everything durable that was answered so far, with dirty bytes of open files.

        Raises StorageError if `losses` has grown beyond `since` (default: during this call).
        """
        since = self.losses if since is None else since
        await self._commit_dirty()
        await self.sync_names(since)

    async def sync_names(self, since: int | None = None) -> None:
        """Make names and attributes durable that were answered so far (fsync of a directory).

        Raises StorageError as `sync` does.
        """
        since = self.losses if since is None else since
        await self._write_path.sync_all()
        if self.losses != since:
            raise StorageError(UNDONE)

    async def sync_directory(self, ino: Ino, since: int) -> None:
        """Make the entries of a directory durable (fsync of a directory).

        Raises StorageError as `sync` does.
        """
        path = self._write_path
        if path.changes == path.durable and self._is_durable(ino) and self.losses == since:
            return  # no other session can have changed it
        await self.sync_names(since)

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """Return the attributes of a name. Raises NotFound, NotDirectory."""
        stamp = self._attributes.stamp
        return await self._with_own_changes(stamp, await self._meta.lookup(parent, name))

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """Return entries with cookie > `after`, without `.` and `..`; [] at the end."""
        stamp = self._attributes.stamp
        entries = await self._meta.readdir(ino, after, limit)
        self.note_read(ino)
        for number, entry in enumerate(entries):
            if entry.attr.ino in self._files:
                attr = await self._with_own_changes(stamp, entry.attr)
            else:
                attr = self._attributes.correct(stamp, entry.attr, None)
            if attr is not entry.attr:
                entries[number] = replace(entry, attr=attr)
        return entries

    async def parent(self, ino: Ino) -> Ino:
        """Return the parent of a directory; the parent of the root is the root."""
        return await self._meta.parent(ino)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """Create a directory. Raises Exists, NotFound, QuotaExceeded."""
        return await self._change(lambda: self._meta.mkdir(parent, name, mode, caller))

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """Create a regular file, fifo, socket or device node."""
        return await self._change(lambda: self._meta.mknod(parent, name, mode, rdev, caller))

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """Create a symbolic link."""
        return await self._change(lambda: self._meta.symlink(parent, name, target, caller))

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Create another name for a non-directory."""
        stamp = self._attributes.stamp
        attr = await self._change(lambda: self._meta.link(ino, parent, name))
        return await self._with_own_changes(stamp, attr)

    async def unlink(self, parent: Ino, name: bytes) -> None:
        """Remove a name of a non-directory."""
        await self._change(lambda: self._meta.unlink(parent, name))

    async def rmdir(self, parent: Ino, name: bytes) -> None:
        """Remove an empty directory."""
        await self._change(lambda: self._meta.rmdir(parent, name))

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """Remove a name with everything below it (`NameStore.remove_tree`)."""
        await self._change(lambda: self._meta.remove_tree(parent, name, if_version=if_version))

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        """Give an inode in the trash a name again (`NameStore.restore`)."""
        return await self._change(lambda: self._meta.restore(ino, parent, name, link))

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> None:
        """Move a name; replace the target as rename(2) does."""
        await self._change(lambda: self._meta.rename(parent, name, new_parent, new_name, flags))

    # -- clones and snapshots --

    async def clone(self, source: Ino, parent: Ino, name: bytes, *, replace: bool = False) -> Attr:
        """Copy an inode with everything below it (`CopyStore.clone`), as this session sees it."""
        await self._commit_dirty()
        store = self._meta.copies
        return await self._change(lambda: store.clone(source, parent, name, replace=replace))

    async def create_snapshot(self, source: Ino, name: bytes, path: bytes) -> Snapshot:
        """Copy an inode with everything below it to a snapshot (`CopyStore.create_snapshot`)."""
        await self._commit_dirty()
        return await self._change(lambda: self._meta.copies.create_snapshot(source, name, path))

    async def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, the oldest first."""
        return await self._meta.copies.snapshots()

    async def remove_snapshot(self, name: bytes) -> None:
        """Remove a snapshot for good. Raises NotFound."""
        await self._change(lambda: self._meta.copies.remove_snapshot(name))

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        """Return attributes; size and mtime include bytes that are dirty in this session."""
        stamp = self._attributes.stamp
        return await self._with_own_changes(stamp, await self._meta.getattr(ino))

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """Apply changes, in order with the writes of this session."""
        file, stamp = self._files.get(ino), self._attributes.stamp
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
        return await self._with_own_changes(stamp, attr)

    async def readlink(self, ino: Ino) -> bytes:
        """Return the target of a symbolic link."""
        target = await self._meta.readlink(ino)
        self.note_read(ino)
        return target

    # -- files --

    async def file_map(self, ino: Ino) -> FileMap:
        """Return the committed attributes and slices of a file."""
        return await self._meta.file_map(ino)

    async def open(self, ino: Ino, flags: int) -> FileHandle:
        """Open a regular file. Respects O_TRUNC, O_APPEND, O_SYNC and the access mode."""
        if flags & _CHANGING:
            check_writable(ino)
        truncate = bool(flags & os.O_TRUNC)
        if not truncate:
            handle = self._table.open_now(ino, flags)
            if handle is not None:
                return handle
        file = self._files.get(ino)
        if truncate and file is not None:
            async with file.writer.resizing():
                return await self._open(ino, flags, truncate)
        return await self._open(ino, flags, truncate)

    async def open_snapshot(self, ino: Ino) -> FileHandle:
        """Open the committed version of a regular file for reading; `attr` describes it."""
        hold = self.stores.holds.begin()
        try:
            file_map, epoch = await self._table.open_in_epoch(
                lambda: self._meta.open(ino),
                lambda file_map: self._meta.open(file_map.attr.ino),
            )
            handle = self._table.add_handle(file_map, os.O_RDONLY, epoch)
            handle.snapshot = FileLayout(file_map)
        except BaseException:
            self.stores.holds.end(hold)
            raise
        handle.hold = hold
        return handle

    async def create(
        self, parent: Ino, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Attr, FileHandle]:
        """Create a regular file; without O_EXCL, open an existing one.

        Raises Exists, IsDirectory, NotFound.
        """
        exclusive, stamp = bool(flags & os.O_EXCL), self._attributes.stamp
        until = self._write_path.changes
        durable = self._write_path.expect_empty and self._write_path.durable_close
        (file_map, is_new), epoch = await self._table.open_in_epoch(
            lambda: self._meta.create(
                parent, name, mode, caller, exclusive=exclusive, durable=durable
            ),
            lambda answer: self._meta.open(answer[0].attr.ino),
        )
        handle = self._table.add_handle(file_map, flags, epoch)
        if is_new:
            handle.file.writer.mark_new(durable_until=until if durable else None)
        try:
            if flags & _CHANGING:
                check_writable(handle.ino)
            if not is_new and flags & os.O_TRUNC:
                handle.attr = await self.setattr(handle.ino, SetAttr(size=0, mtime_now=True))
            return await self._with_own_changes(stamp, handle.attr), handle
        except BaseException:
            with contextlib.suppress(WrkfsError):
                await handle.close()
            raise

    async def create_unlinked(
        self, mode: int, caller: Caller, flags: int = os.O_RDWR
    ) -> FileHandle:
        """Create a file without a name and open it.

        The store deletes the file unless `publish` names it.
        """
        file_map, epoch = await self._table.open_in_epoch(
            lambda: self._meta.create_unlinked(mode, caller),
            lambda file_map: self._meta.open(file_map.attr.ino),
        )
        return self._table.add_handle(file_map, flags, epoch)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        """Name an unlinked file durably, with all its bytes or not at all (`NameStore.publish`)."""
        file = self._files.get(ino)
        if file is not None:
            # Durable: a crash between this and the naming must not undo bytes.
            await file.writer.commit(durable=True, all_files=False)
            for handle in file.handles:
                if handle.error is not None:
                    raise handle.error
        until = self._write_path.changes
        published, _ = await self._write_path.attempt(
            lambda: self._meta.publish(
                ino, parent, name, if_version=if_version, if_absent=if_absent
            )
        )
        self._write_path.note_durable(until)
        return published

    # -- the volume, extended attributes --

    async def statfs(self) -> StatFs:
        """Return the exact usage, and the limits."""
        return await self._meta.statfs()

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """Return an attribute. Raises NoData, and NotSupported for namespaces without storage."""
        if name == FILE_CAPABILITIES:
            # The kernel asks for it before every write(2). The answer needs no round trip.
            raise NoData
        check_namespace(name)
        return await self._meta.getxattr(ino, name)

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """Set an attribute. Raises NotSupported for namespaces without storage."""
        check_namespace(name)
        await self._change(lambda: self._meta.setxattr(ino, name, value, flags))

    async def listxattr(self, ino: Ino) -> list[bytes]:
        """Return the names of all attributes."""
        return await self._meta.listxattr(ino)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """Remove an attribute. Raises NoData."""
        check_namespace(name)
        await self._change(lambda: self._meta.removexattr(ino, name))

    # -- internal --

    async def _commit_dirty(self) -> None:
        """Commit the dirty bytes of every open file."""
        files = list(self._files.values())
        await asyncio.gather(*(file.writer.commit(durable=False) for file in files))

    async def _with_own_changes(self, stamp: int, attr: Attr) -> Attr:
        """Return attributes that are no older than the writes and reads of this session."""
        file = self._files.get(attr.ino)
        if file is not None:
            await file.writer.settle()
        return self._attributes.correct(stamp, attr, file)

    async def _setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        if changes.atime_ns is not None or changes.atime_now:
            await self._attributes.atimes.forget(ino)
        attr = await self._change(lambda: self._meta.setattr(ino, changes))
        self._attributes.record(attr)
        return attr

    async def _open(self, ino: Ino, flags: int, truncate: bool) -> FileHandle:
        file_map, epoch = await self._table.open_in_epoch(
            lambda: self._meta.open(ino, truncate=truncate),
            lambda file_map: self._meta.open(file_map.attr.ino),
        )
        handle = self._table.add_handle(file_map, flags, epoch)
        if truncate:
            self._attributes.record(file_map.attr)
            self._write_path.note_change()
        return handle

    async def _change(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a change (`WritePath.attempt`), and note that it is not durable yet."""
        answer, _ = await self._write_path.attempt(call)
        self._write_path.note_change()
        return answer

    def _on_crash(self, lost: bool) -> None:
        """Handle a crash of the database; with `lost`, the crash undid changes of this session."""
        self.crashes += 1
        self.losses += lost
        self._recovery.after_crash(lost)
