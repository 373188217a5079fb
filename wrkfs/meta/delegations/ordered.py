"""A metadata store that sends the session's unsent changes before calls that depend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.delegations.copies import OrderedCopies
from wrkfs.types import RenameFlags, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wrkfs.meta.delegations.flusher import Flusher
    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest
    from wrkfs.types import (
        Attr,
        Caller,
        Commit,
        Dentry,
        FileMap,
        Ino,
        Moved,
        SessionId,
        SetAttr,
        SliceId,
        Spot,
        StatFs,
        Stretch,
    )


class OrderedStore:
    """The database behind the changes of this session.

    A read first sends the changes if some concern what it reads. A change first sends all of them,
    so that the database sees the changes of the session in order.

    Implements `LeaseStore`; the protocol documents each method.
    """

    def __init__(self, inner: DelegationStore, flusher: Flusher) -> None:
        self._inner = inner
        self._flusher = flusher
        # These calls neither read nor change what a delegation covers.
        self.start, self.close, self.watch = inner.start, inner.close, inner.watch
        self.watch_leases, self.take_lease = inner.watch_leases, inner.take_lease
        self.give_back, self.release = inner.give_back, inner.release
        self.reserve_slices, self.rejoin = inner.reserve_slices, inner.rejoin
        self.copies = OrderedCopies(inner.copies, flusher)

    @property
    def session(self) -> SessionId:
        """Number of the registered session."""
        return self._inner.session

    @property
    def epoch(self) -> int:
        """Generation of the registration."""
        return self._inner.epoch

    @property
    def trusted_until(self) -> float:
        """Deadline of the leases."""
        return self._inner.trusted_until

    @property
    def can_lease(self) -> bool:
        """True if the session can receive recalls now."""
        return self._inner.can_lease

    async def _settle(self, *inos: Ino) -> None:
        """Send changes that concern these inodes."""
        if self._flusher.concerns(inos):
            await self._flusher.flush()

    # -- reads --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        await self._settle(parent)
        return await self._inner.lookup(parent, name)

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        await self._settle(parent)
        return await self._inner.find(parent, name)

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        await self._settle(ino)
        return await self._inner.readdir(ino, after, limit)

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        await self._settle(ino)
        return await self._inner.entries(ino, after, limit)

    async def read_tree(self, request: TreeRequest) -> TreeAnswer:
        await self._settle(*request.directories)
        return await self._inner.read_tree(request)

    async def parent(self, ino: Ino) -> Ino:
        await self._settle(ino)
        return await self._inner.parent(ino)

    async def getattr(self, ino: Ino) -> Attr:
        await self._settle(ino)
        return await self._inner.getattr(ino)

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        await self._settle(ino)
        return await self._inner.stat(ino)

    async def readlink(self, ino: Ino) -> bytes:
        await self._settle(ino)
        return await self._inner.readlink(ino)

    async def file_map(self, ino: Ino) -> FileMap:
        await self._settle(ino)
        return await self._inner.file_map(ino)

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        await self._settle(ino)
        return await self._inner.getxattr(ino, name)

    async def listxattr(self, ino: Ino) -> list[bytes]:
        await self._settle(ino)
        return await self._inner.listxattr(ino)

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        if truncate:
            await self._flusher.flush()
        else:
            await self._settle(ino)
        return await self._inner.open(ino, truncate=truncate)

    async def sustain(self, inos: Sequence[Ino]) -> None:
        await self._settle(*inos)
        await self._inner.sustain(inos)

    async def statfs(self) -> StatFs:
        await self._flusher.flush()
        return await self._inner.statfs()

    # -- changes --

    async def sync(self) -> None:
        if not await self._flusher.flush():
            await self._inner.sync()

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
        await self._flusher.flush()
        return await self._inner.create(
            parent, name, mode, caller, exclusive=exclusive, durable=durable
        )

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        await self._flusher.flush()
        return await self._inner.create_unlinked(mode, caller)

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        await self._flusher.flush()
        return await self._inner.mknod(parent, name, mode, rdev, caller)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        await self._flusher.flush()
        return await self._inner.mkdir(parent, name, mode, caller)

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        await self._flusher.flush()
        return await self._inner.symlink(parent, name, target, caller)

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        await self._flusher.flush()
        return await self._inner.link(ino, parent, name)

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        await self._flusher.flush()
        return await self._inner.unlink(parent, name)

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        await self._flusher.flush()
        return await self._inner.rmdir(parent, name)

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        await self._flusher.flush()
        await self._inner.remove_tree(parent, name, if_version=if_version)

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        await self._flusher.flush()
        return await self._inner.rename(parent, name, new_parent, new_name, flags)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        await self._flusher.flush()
        return await self._inner.publish(
            ino, parent, name, if_version=if_version, if_absent=if_absent
        )

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        await self._flusher.flush()
        return await self._inner.restore(ino, parent, name, link)

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        await self._flusher.flush()
        return await self._inner.setattr(ino, changes)

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        await self._settle(*atimes)
        await self._inner.touch(atimes)

    async def commit(self, commit: Commit) -> Attr:
        await self._flusher.flush()
        return await self._inner.commit(commit)

    async def allocate(self, ino: Ino, start: int, length: int, *, clear: bool, grow: bool) -> Attr:
        await self._flusher.flush()
        return await self._inner.allocate(ino, start, length, clear=clear, grow=grow)

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        await self._flusher.flush()
        return await self._inner.copy_range(source, start, target, to, length)

    async def compact(self, stretch: Stretch) -> bool:
        await self._flusher.flush()
        return await self._inner.compact(stretch)

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        await self._inner.give_up(slices)

    async def drop_ranges(self) -> None:
        await self._flusher.flush()
        await self._inner.drop_ranges()

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        await self._flusher.flush()
        await self._inner.setxattr(ino, name, value, flags)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        await self._flusher.flush()
        await self._inner.removexattr(ino, name)
