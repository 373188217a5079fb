"""A metadata store that hands every call on to another one: the base of what adds to a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.types import RenameFlags, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from wrkfs.meta.leases import LeaseStore
    from wrkfs.types import (
        Attr,
        Caller,
        Commit,
        Dentry,
        FileMap,
        Ino,
        Moved,
        Place,
        SessionId,
        SetAttr,
        SliceId,
        StatFs,
        Stretch,
        TrashEntry,
    )


class DelegatingMeta:
    """See `interface.MetaStore` and `upkeep.UpkeepStore` for every method."""

    def __init__(self, inner: LeaseStore) -> None:
        self._inner = inner

    @property
    def session(self) -> SessionId:
        """See MetaStore."""
        return self._inner.session

    @property
    def epoch(self) -> int:
        """See MetaStore."""
        return self._inner.epoch

    async def rejoin(self) -> None:
        """See MetaStore."""
        await self._inner.rejoin()

    async def start(self) -> None:
        """See MetaStore."""
        await self._inner.start()

    async def close(self) -> None:
        """See MetaStore."""
        await self._inner.close()

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """See MetaStore."""
        self._inner.watch(on_crash)

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """See MetaStore."""
        return await self._inner.lookup(parent, name)

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """See MetaStore."""
        return await self._inner.readdir(ino, after, limit)

    async def parent(self, ino: Ino) -> Ino:
        """See MetaStore."""
        return await self._inner.parent(ino)

    async def getattr(self, ino: Ino) -> Attr:
        """See MetaStore."""
        return await self._inner.getattr(ino)

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """See MetaStore."""
        return await self._inner.setattr(ino, changes)

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        """See MetaStore."""
        await self._inner.touch(atimes)

    async def readlink(self, ino: Ino) -> bytes:
        """See MetaStore."""
        return await self._inner.readlink(ino)

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
        return await self._inner.create(
            parent, name, mode, caller, exclusive=exclusive, durable=durable
        )

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """See MetaStore."""
        return await self._inner.mknod(parent, name, mode, rdev, caller)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """See MetaStore."""
        return await self._inner.mkdir(parent, name, mode, caller)

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """See MetaStore."""
        return await self._inner.symlink(parent, name, target, caller)

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """See MetaStore."""
        return await self._inner.link(ino, parent, name)

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        """See MetaStore."""
        return await self._inner.unlink(parent, name)

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        """See MetaStore."""
        return await self._inner.rmdir(parent, name)

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """See MetaStore."""
        await self._inner.remove_tree(parent, name, if_version=if_version)

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        """See MetaStore."""
        return await self._inner.rename(parent, name, new_parent, new_name, flags)

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """See MetaStore."""
        return await self._inner.open(ino, truncate=truncate)

    async def release(self, ino: Ino) -> None:
        """See MetaStore."""
        await self._inner.release(ino)

    async def file_map(self, ino: Ino) -> FileMap:
        """See MetaStore."""
        return await self._inner.file_map(ino)

    async def reserve_slices(self, count: int) -> SliceId:
        """See MetaStore."""
        return await self._inner.reserve_slices(count)

    async def commit(self, commit: Commit) -> Attr:
        """See MetaStore."""
        return await self._inner.commit(commit)

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        """See MetaStore."""
        return await self._inner.create_unlinked(mode, caller)

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
        return await self._inner.publish(
            ino, parent, name, if_version=if_version, if_absent=if_absent
        )

    async def statfs(self) -> StatFs:
        """See MetaStore."""
        return await self._inner.statfs()

    async def sync(self) -> None:
        """See MetaStore."""
        await self._inner.sync()

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """See MetaStore."""
        return await self._inner.getxattr(ino, name)

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """See MetaStore."""
        await self._inner.setxattr(ino, name, value, flags)

    async def listxattr(self, ino: Ino) -> list[bytes]:
        """See MetaStore."""
        return await self._inner.listxattr(ino)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """See MetaStore."""
        await self._inner.removexattr(ino, name)

    # -- upkeep --

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        """See UpkeepStore."""
        self._inner.watch_snapshots(oldest)

    async def claim_upkeep(self, period: timedelta) -> bool:
        """See UpkeepStore."""
        return await self._inner.claim_upkeep(period)

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        """See UpkeepStore."""
        return await self._inner.garbage(grace, limit)

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        """See UpkeepStore."""
        await self._inner.forget_slices(slices)

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        """See UpkeepStore."""
        await self._inner.give_up(slices)

    async def drop_ranges(self) -> None:
        """See UpkeepStore."""
        await self._inner.drop_ranges()

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        """See UpkeepStore."""
        return await self._inner.adopt_orphans(grace, limit, size)

    async def compact(self, stretch: Stretch) -> bool:
        """See UpkeepStore."""
        return await self._inner.compact(stretch)

    async def ragged(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        """See UpkeepStore."""
        return await self._inner.ragged(after, refs, limit)

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        """See UpkeepStore."""
        return await self._inner.list_trash(after, limit)

    async def place(self, ino: Ino) -> Place | None:
        """See UpkeepStore."""
        return await self._inner.place(ino)

    async def restore(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """See UpkeepStore."""
        return await self._inner.restore(ino, parent, name)

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        """See UpkeepStore."""
        return await self._inner.purge_trash(until, limit)

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        """See UpkeepStore."""
        return await self._inner.trash_excess(share, rows)

    async def thin_trash(self, keep: int, limit: int) -> int:
        """See UpkeepStore."""
        return await self._inner.thin_trash(keep, limit)
