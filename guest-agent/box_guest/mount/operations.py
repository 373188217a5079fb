"""Protocol adapter only. Passes FUSE requests to `wrkfs.fs.Filesystem` and returns its results and
errnos.

The kernel may cache an answer for as long as a lease covers it. Its cache is invalidated (`kernel`)
before the lease is released. Answers without a lease have a time-out of 0: the kernel asks again
each time, and the store answers. So a change made anywhere is visible at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from typing import TYPE_CHECKING

import pyfuse3

from box_guest.mount import ranges
from box_guest.mount.answers import entry as entry_of
from box_guest.mount.answers import reply_dot, skip_flush
from box_guest.mount.callers import FSETID, caller, may, visible
from box_guest.mount.ghosts import UnlinkedInodes
from box_guest.mount.guarded import REQUEST_TIMEOUT, handler, lasting, of_inode
from box_guest.mount.handles import DOT_COOKIES, DirectoryCursor, Table
from box_guest.mount.locks import LockRequests, interruption
from box_guest.mount.memory import give_back_soon
from box_guest.mount.secondwalk import SecondWalks
from box_guest.mount.watchdog import Watchdog
from wrkfs.errors import Exists, InvalidArgument, NotFound, PreconditionFailed, WrkfsError
from wrkfs.meta.rules import check_writable, without_set_ids
from wrkfs.types import Caller, Ino, RenameFlags, SetAttr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from box_guest.mount.kernel import Kernel
    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Attr, Dentry

log = logging.getLogger(__name__)

BLOCK_SIZE = 4096
"""Unit of statfs."""
UNLIMITED = 1 << 50
"""Bytes that statfs reports if the volume has no quota (1 PiB)."""
UNLIMITED_INODES = 1 << 40
"""Inodes that statfs reports if the volume has no quota."""
IMPOSSIBLE_SIZE = -1
"""st_size of an entry that the kernel lists, refuses to link and forgets at once."""


class Operations(pyfuse3.Operations):
    """The request handlers of one mount. The kernel's requests run concurrently."""

    supports_dot_lookup = True
    enable_writeback_cache = False
    # A binding that cannot pass requests for locks ignores these, and the kernel keeps the locks of
    # this mount itself.
    enable_posix_locks = True
    enable_flock = True

    def __init__(self, fs: Filesystem) -> None:
        super().__init__()
        self.watchdog = Watchdog(REQUEST_TIMEOUT, give_back_soon)
        self.initialised = asyncio.Event()
        self._fs = fs
        self._files: Table[FileHandle] = Table()
        self._directories: Table[DirectoryCursor] = Table()
        self._locks = LockRequests(fs.locks)
        self._ghosts = UnlinkedInodes()
        self._walks = SecondWalks(fs)
        self._unnamed: set[int] = set()
        """Files of O_TMPFILE that may get a first name."""
        self._versions: dict[int, tuple[int, int, int]] = {}
        """Of each open file: the database's crash count at the open, the epoch and the version."""
        self._kernel: Kernel | None = None

    def attach(self, kernel: Kernel) -> None:
        """Let the kernel cache leased answers from now on. Call before the first request."""
        if self._fs.leases is not None:
            self._kernel = kernel
            self._fs.leases.on_drop = kernel.drop
            self._fs.locks.on_change = kernel.drop_pages

    def detach(self) -> None:
        """Stop sending messages to the kernel, because the mount ends."""
        if self._kernel is not None:
            self._kernel.close()

    def gone(self, ino: Ino, ctx: pyfuse3.RequestContext) -> int:
        """Return the errno of a request for a missing inode: ESTALE makes the kernel look again."""
        if self._walks.attributes(ctx.pid, ino) is not None:
            return errno.ENOENT
        self._walks.begin(ctx.pid)
        return errno.ESTALE

    def init(self) -> None:
        """FUSE_INIT: the answer is sent before the event loop continues."""
        self.initialised.set()

    # -- names --

    @handler
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """LOOKUP; `.` and `..` come from file handles of an exported tree."""
        parent = Ino(parent_inode)
        if name == b".":
            return self._lookup_answer(await self._fs.getattr(parent))
        if name == b"..":
            return self._lookup_answer(await self._fs.getattr(await self._fs.parent(parent)))
        try:
            attr = await self._walks.lookup(ctx.pid, parent, name)
            self._ghosts.saw(parent, name, attr)
        except NotFound:
            valid = self._name_validity(parent, name, None)
            if not valid:
                raise
            absent = pyfuse3.EntryAttributes()
            absent.st_ino = 0
            absent.entry_timeout = valid
            return absent
        return self._named(parent, name, attr)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """FORGET, of an inode or of one answer that named it."""
        for inode, lookups in inode_list:
            if self._kernel is None or self._kernel.forgot(inode, lookups):
                self._ghosts.forget(inode)
                self._versions.pop(inode, None)
                self._unnamed.discard(inode)

    @handler
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """MKDIR."""
        parent = Ino(parent_inode)
        return self._named(parent, name, await self._fs.mkdir(parent, name, mode, caller(ctx)))

    @handler
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """MKNOD."""
        parent = Ino(parent_inode)
        attr = await self._fs.mknod(parent, name, mode, rdev, caller(ctx))
        return self._named(parent, name, attr)

    @handler
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """SYMLINK."""
        parent = Ino(parent_inode)
        return self._named(parent, name, await self._fs.symlink(parent, name, target, caller(ctx)))

    @of_inode
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """LINK."""
        parent = Ino(new_parent_inode)
        if inode in self._unnamed:
            return self._named(parent, new_name, await self._publish(Ino(inode), parent, new_name))
        return self._named(parent, new_name, await self._fs.link(Ino(inode), parent, new_name))

    @handler
    async def unlink(self, parent_inode: int, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """UNLINK."""
        self._look(Ino(parent_inode), name)
        await self._fs.unlink(Ino(parent_inode), name)
        self._ghosts.removed(parent_inode, name)

    @handler
    async def rmdir(self, parent_inode: int, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """RMDIR."""
        self._look(Ino(parent_inode), name)
        await self._fs.rmdir(Ino(parent_inode), name)
        self._ghosts.removed(parent_inode, name)

    @handler
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        _ctx: pyfuse3.RequestContext,
    ) -> None:
        """RENAME2."""
        if flags & ~(RenameFlags.NOREPLACE | RenameFlags.EXCHANGE):
            raise InvalidArgument("unknown rename flags")
        old, new, leases = Ino(parent_inode_old), Ino(parent_inode_new), self._fs.leases
        self._look(new, name_new)
        await self._fs.rename(old, name_old, new, name_new, RenameFlags(flags))
        covered = leases is not None and leases.holds(old)
        if self._kernel is not None and not (covered and old == new):
            # The kernel caches the name at its new place.
            self._kernel.drop_names()
        self._ghosts.removed(parent_inode_new, name_new)

    # -- inodes --

    @of_inode
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """GETATTR."""
        try:
            return self._described(await self._fs.getattr(Ino(inode)))
        except NotFound:
            ghost = self._ghosts.find(Ino(inode)) or self._walks.attributes(ctx.pid, Ino(inode))
            if ghost is None:
                raise
            return entry_of(ghost)

    @of_inode
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        _fh: int | None,
        _ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """SETATTR: chmod, chown, truncate, utimens."""
        changes = SetAttr(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return self._described(await self._fs.setattr(Ino(inode), changes))

    @of_inode
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """READLINK."""
        try:
            return await self._fs.readlink(Ino(inode))
        except NotFound:
            target = self._walks.target(ctx.pid, Ino(inode))
            if target is None:
                raise
            return target

    # -- files --

    @of_inode
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """OPEN, with O_TRUNC."""
        crashes = self._fs.crashes
        handle = await self._fs.open(Ino(inode), flags)
        await self._drop_set_ids(handle, flags, ctx)
        self._walks.end(ctx.pid)
        return self._open_answer(handle, flags, crashes)

    @handler
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """CREATE: lookup, mknod and open in one."""
        parent, crashes = Ino(parent_inode), self._fs.crashes
        attr, handle = await self._fs.create(parent, name, mode, flags, caller(ctx))
        return self._open_answer(handle, flags, crashes), self._named(parent, name, attr)

    @handler
    async def tmpfile(
        self, parent_inode: int, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """TMPFILE: open(2) with O_TMPFILE, which creates a file without a name."""
        check_writable(Ino(parent_inode))
        directory, crashes = await self._fs.getattr(Ino(parent_inode)), self._fs.crashes
        gid = directory.gid if directory.mode & stat.S_ISGID else ctx.gid
        handle = await self._fs.create_unlinked(mode, Caller(ctx.uid, gid), flags)
        if not flags & os.O_EXCL:
            self._unnamed.add(handle.ino)
        return self._open_answer(handle, flags, crashes), self._lookup_answer(handle.attr)

    async def _publish(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Give a file of O_TMPFILE its first name."""
        try:
            await self._fs.publish(ino, parent, name, if_absent=True)
        except PreconditionFailed:
            raise Exists from None
        self._unnamed.discard(ino)
        return await self._fs.getattr(ino)

    # pyfuse3 declares bytes, but accepts a memoryview: it uses the buffer protocol.
    @handler
    async def read(self, fh: int, off: int, size: int) -> bytes:
        """READ."""
        return await self._files[fh].read_view(off, size)  # type: ignore[return-value] # see above

    @handler
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """WRITE."""
        return await self._files[fh].write(off, buf)

    @handler
    async def flush(self, fh: int) -> None:
        """FLUSH: close(2) of one descriptor."""
        await self._files[fh].flush()

    @handler
    async def fsync(self, fh: int, _datasync: bool) -> None:
        """FSYNC."""
        await self._files[fh].fsync()

    @handler
    async def release(self, fh: int) -> None:
        """RELEASE: no caller waits for the answer; FLUSH has reported the errors of writes.

        Only pages of a mapping that outlived the descriptor can be lost here.
        """
        handle = self._files.pop(fh)
        try:
            await handle.close(flushed=True)
        except WrkfsError as error:
            log.error("lost data of inode %d after its last close: %s", handle.ino, error)
            raise

    @handler
    async def lseek(self, fh: int, off: int, whence: int) -> int:
        """LSEEK."""
        return await ranges.seek(self._fs.ranges, self._files[fh], off, whence)

    @handler
    async def fallocate(self, fh: int, mode: int, offset: int, length: int) -> None:
        """FALLOCATE."""
        await ranges.allocate(self._fs.ranges, self._files[fh], mode, offset, length)

    @handler
    async def copy_file_range(
        self, fh_in: int, off_in: int, fh_out: int, off_out: int, length: int, flags: int
    ) -> int:
        """COPY_FILE_RANGE."""
        if flags:
            raise InvalidArgument("copy_file_range has no flags")
        source, target = self._files[fh_in], self._files[fh_out]
        return await self._fs.ranges.copy(source, off_in, target, off_out, length)

    # -- locks --

    @handler
    async def flush_locked(self, _inode: int, fh: int, owner: int) -> None:
        """FLUSH: the process loses its locks of the file after its bytes are committed."""
        handle = self._files[fh]
        try:
            await handle.flush()
        finally:
            await self._locks.flushed(handle.ino, owner)

    @handler
    async def release_locked(self, _inode: int, fh: int, _owner: int | None) -> None:
        """RELEASE: locks that only this open file used end with it."""
        handle = self._files[fh]
        try:
            await self.release(fh)
        finally:
            await self._locks.released(handle)

    @handler
    async def getlk(
        self, _inode: int, fh: int, owner: int, lock: pyfuse3.FileLock, _ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileLock | None:
        """GETLK."""
        return await self._locks.get(self._files[fh], owner, lock)

    @lasting
    async def setlk(
        self,
        _inode: int,
        fh: int,
        owner: int,
        lock: pyfuse3.FileLock,
        sleep: bool,
        interrupt: pyfuse3.Interrupt,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """SETLK, and SETLKW with `sleep`."""
        event = interruption(interrupt) if sleep else None
        await self._locks.set(self._files[fh], owner, lock, event, ctx.pid)

    @lasting
    async def flock(
        self,
        _inode: int,
        fh: int,
        owner: int,
        operation: int,
        interrupt: pyfuse3.Interrupt,
        _ctx: pyfuse3.RequestContext,
    ) -> None:
        """SETLK of flock(2)."""
        await self._locks.flock(self._files[fh], owner, operation, interrupt)

    # -- directories --

    @handler
    async def opendir(self, inode: int, _ctx: pyfuse3.RequestContext) -> int:
        """OPENDIR."""
        return self._directories.add(DirectoryCursor(self._fs, Ino(inode)))

    @handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """READDIRPLUS."""
        cursor = self._directories[fh]
        if self._kernel is not None:
            self._kernel.taken_over(fh)
        entries = await cursor.after(start_id)
        dots = max(0, DOT_COOKIES - start_id)
        if start_id < 1 and not reply_dot(token, b".", cursor.ino, 1):
            return
        if start_id < DOT_COOKIES and not reply_dot(token, b"..", cursor.parent, 2):
            return
        validities, receipt = self._validities(cursor, entries, dots)
        count, relied, cached_inos = 0, False, set[Ino]()
        for number, (entry, (named, described)) in enumerate(zip(entries, validities, strict=True)):
            attributes = entry_of(entry.attr)
            attributes.entry_timeout, attributes.attr_timeout = named, described
            if number == receipt:
                attributes.st_size = IMPOSSIBLE_SIZE
            if not pyfuse3.readdir_reply(token, entry.name, attributes, entry.cookie + DOT_COOKIES):
                break
            count += 1
            if named:
                relied = True
            if described:
                cached_inos.add(entry.attr.ino)
            if self._kernel is not None:
                self._kernel.answered(entry.attr.ino)
        cursor.took(entries[:count], len(entries), dots)
        if (relied or cached_inos) and self._kernel is not None:
            receipt_ino = None if receipt is None or receipt >= count else entries[receipt].attr.ino
            self._kernel.listed(fh, cursor.ino, cached_inos, receipt_ino)

    @handler
    async def releasedir(self, fh: int) -> None:
        """RELEASEDIR."""
        self._directories.pop(fh)
        if self._kernel is not None:
            self._kernel.taken_over(fh)

    @handler
    async def fsyncdir(self, fh: int, _datasync: bool) -> None:
        """FSYNCDIR: names have the same durability as data."""
        await self._directories[fh].sync()

    # -- the volume, extended attributes --

    @handler
    async def statfs(self, _ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """STATFS."""
        statistics = await self._fs.statfs()
        limit = UNLIMITED if statistics.bytes_limit is None else statistics.bytes_limit
        inodes = UNLIMITED_INODES if statistics.inodes_limit is None else statistics.inodes_limit
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = BLOCK_SIZE
        data.f_blocks = limit // BLOCK_SIZE
        data.f_bfree = data.f_bavail = max(0, limit - statistics.bytes_used) // BLOCK_SIZE
        data.f_files = inodes
        data.f_ffree = data.f_favail = max(0, inodes - statistics.inodes_used)
        data.f_namemax = 255
        return data

    @of_inode
    async def getxattr(self, inode: int, name: bytes, _ctx: pyfuse3.RequestContext) -> bytes:
        """GETXATTR."""
        return await self._fs.getxattr(Ino(inode), name)

    @of_inode
    async def setxattr(
        self, inode: int, name: bytes, value: bytes, _ctx: pyfuse3.RequestContext
    ) -> None:
        """SETXATTR; pyfuse3 has checked XATTR_CREATE and XATTR_REPLACE."""
        await self._fs.setxattr(Ino(inode), name, value)

    @of_inode
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """LISTXATTR."""
        return visible(ctx, await self._fs.listxattr(Ino(inode)))

    @of_inode
    async def removexattr(self, inode: int, name: bytes, _ctx: pyfuse3.RequestContext) -> None:
        """REMOVEXATTR."""
        await self._fs.removexattr(Ino(inode), name)

    async def _drop_set_ids(
        self, handle: FileHandle, flags: int, ctx: pyfuse3.RequestContext
    ) -> None:
        """Clear the set-id bits of a file truncated by O_TRUNC, unless by root (CAP_FSETID).

        The kernel itself clears them on every other change of data.
        """
        mode = handle.attr.mode
        if not flags & os.O_TRUNC or without_set_ids(mode) == mode or may(ctx, FSETID):
            return
        try:
            await self._fs.setattr(handle.ino, SetAttr(mode=without_set_ids(mode)))
        except WrkfsError:
            await handle.close()
            raise

    def _open_answer(self, handle: FileHandle, flags: int, crashes: int) -> pyfuse3.FileInfo:
        # The kernel writes appended bytes into its pages at the end of file that it knows. Another
        # host may have appended there meanwhile, and a reader here would see the two mixed. The
        # kernel also does not distinguish an append from a write-back of a shared mapping. So
        # appends bypass its pages, and a file opened for appending cannot be mapped shared
        # (ENODEV). But the kernel clears set-id bits only on writes through its pages, which
        # write-only descriptors allow.
        appends = flags & os.O_APPEND and handle.writable
        set_id = handle.attr.mode & (stat.S_ISUID | stat.S_ISGID)
        direct = bool(appends and (handle.readable or not set_id))
        keep = self._keeps_pages(handle, crashes)
        info = pyfuse3.FileInfo(fh=self._files.add(handle), keep_cache=keep, direct_io=direct)
        # The close of a reader has nothing to commit. But it ends the locks of its process.
        if not (handle.writable or self.enable_posix_locks or handle.file.durable_close):
            skip_flush(info)
        return info

    def _keeps_pages(self, handle: FileHandle, crashes: int) -> bool:
        """Return whether the kernel's pages hold the opened version: equal version, equal bytes.

        That is certain only for a file without another open handle, because a page that another
        handle reads may arrive late. It also requires that the database has not crashed since: a
        crash can reuse a version number.
        """
        if self._kernel is None:
            return False
        ino, version = handle.ino, (crashes, handle.epoch, handle.attr.version)
        alone = len(handle.file.handles) == 1
        keeps = alone and self._versions.get(ino) == version and not self._fs.is_read_due(ino)
        if alone and not handle.writable:
            self._versions[ino] = version
        else:
            self._versions.pop(ino, None)
        return keeps

    def _named(self, parent: Ino, name: bytes, attr: Attr) -> pyfuse3.EntryAttributes:
        """Build an answer with a name."""
        entry = self._described(attr)
        entry.entry_timeout = self._name_validity(parent, name, attr.ino)
        if self._kernel is not None:
            (self._kernel.named if entry.attr_timeout else self._kernel.answered)(attr.ino)
        return entry

    def _lookup_answer(self, attr: Attr) -> pyfuse3.EntryAttributes:
        """Build the answer to a look-up that the kernel must not cache."""
        if self._kernel is not None:
            self._kernel.answered(attr.ino)
        return entry_of(attr)

    def _described(self, attr: Attr) -> pyfuse3.EntryAttributes:
        """Build an answer with attributes."""
        entry = entry_of(attr)
        if self._kernel is not None and self._fs.leases is not None:
            entry.attr_timeout = self._fs.leases.attr_validity(attr)
        return entry

    def _name_validity(self, parent: Ino, name: bytes, ino: Ino | None) -> float:
        if self._kernel is None or self._fs.leases is None or not self._kernel.forgets_names:
            return 0
        return self._fs.leases.entry_validity(parent, name, ino)

    def _validities(
        self, cursor: DirectoryCursor, entries: list[Dentry], dots: int
    ) -> tuple[list[tuple[float, float]], int | None]:
        """Return the seconds for which the kernel may cache names and attributes of a listing, and
        its receipt.

        The receipt is the position of an entry that the kernel cannot link. When the kernel reaches
        it, it has linked all earlier entries, and sends a FORGET. Later entries are not cached.
        """
        nothing = [(0.0, 0.0)] * len(entries)
        if self._kernel is None or self._fs.leases is None:
            return nothing, None
        validity = self._fs.leases.listing_validity(cursor.ino, entries)
        if not self._kernel.forgets_names:
            return [(0.0, attr) for _, attr in validity], None
        receipt = cursor.fitting(entries, dots) - 1
        while receipt > 0 and not self._kernel.can_receive(entries[receipt].attr.ino):
            receipt -= 1
        # The kernel looks the receipt's entry up separately if a program wants it.
        if receipt <= 0 or validity[:receipt] == nothing[:receipt]:
            return nothing, None
        return validity[:receipt] + nothing[receipt:], receipt

    def _look(self, parent: Ino, name: bytes) -> None:
        """Record the inode of a name before its removal, because the kernel may keep the inode."""
        attr = None if self._fs.leases is None else self._fs.leases.peek(parent, name)
        if attr is not None:
            self._ghosts.saw(parent, name, attr)
