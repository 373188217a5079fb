"""The open files of one session: reads, handles, ranges, and the release of inodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from wrkfs.errors import (
    BadDescriptor,
    Fenced,
    Missing,
    NoSuchAddress,
    OutOfRange,
    Unavailable,
    WrkfsError,
)
from wrkfs.handle import FileHandle, OpenFile
from wrkfs.layout import FileLayout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wrkfs.attribute_cache import AttributeCache
    from wrkfs.meta.interface.files import FileStore
    from wrkfs.stores import Stores
    from wrkfs.types import Attr, BytesLike, FileMap, Ino
    from wrkfs.write_path import WritePath

    Change = Callable[[Callable[[], Awaitable[Attr]]], Awaitable[Attr]]
    T = TypeVar("T")

COPY_MAX = 1 << 30
"""Maximum number of bytes of one copy: it writes a row for each slice, under locks."""
_TRIES = 5
"""Attempts to copy from a file that others cut meanwhile."""


class LightOpens(Protocol):
    """A store with leases, which opens files without a round trip."""

    def open_now(self, ino: Ino) -> Attr | None:
        """Open a file without its map; None if the store must be asked."""
        ...

    def release_now(self, ino: Ino) -> bool:
        """Release an open file if that costs no round trip; return whether it did."""
        ...


class OpenFileTable:
    """The open files of one session by inode number (`HandleOwner`).

    Critical section: `files` gains an entry, and the entry its handle, in one step. An entry leaves
    with its last handle, after the dirty bytes are committed.
    """

    def __init__(
        self,
        files: dict[Ino, OpenFile],
        stores: Stores,
        write_path: WritePath,
        attributes: AttributeCache,
        light: LightOpens | None = None,
    ) -> None:
        """`files` is empty; other code may read it, and only the table changes it."""
        self._files = files
        self._light = light
        self._stores = stores
        self._meta = stores.meta
        self._reader = stores.reader
        self._write_path = write_path
        self._attributes = attributes
        self.note_read = attributes.note_read
        self.record = attributes.record

    # -- opening and closing --

    async def open_in_epoch(
        self, call: Callable[[], Awaitable[T]], again: Callable[[T], Awaitable[object]]
    ) -> tuple[T, int]:
        """Make a call that opens a file; return its answer and the epoch the file is open in.

        If the epoch changes meanwhile, `again` opens the file in the new epoch.
        """
        answer, epoch = await self._write_path.attempt(call)
        while epoch != self._meta.epoch:
            epoch = self._meta.epoch
            await again(answer)
        return answer, epoch

    def add_handle(self, file_map: FileMap, flags: int, epoch: int) -> FileHandle:
        """Return a new handle of a file that is open in `epoch`."""
        file = self._file(file_map.attr.ino)
        if file.layout is None or file.layout.version <= file_map.attr.version:
            file.layout = FileLayout(self._stores.inspect(file_map))
        return self._add(file, file_map.attr, flags, epoch)

    def open_now(self, ino: Ino, flags: int) -> FileHandle | None:
        """Open a file that a lease covers, without a round trip; None if there is no lease.

        The first read requests the map, unless the kernel has the bytes.
        """
        attr = None if self._light is None else self._light.open_now(ino)
        return None if attr is None else self._add(self._file(ino), attr, flags, self._meta.epoch)

    def _file(self, ino: Ino) -> OpenFile:
        file = self._files.get(ino)
        if file is None:
            file = self._files[ino] = OpenFile(self, ino, self._write_path)
        return file

    def _add(self, file: OpenFile, attr: Attr, flags: int, epoch: int) -> FileHandle:
        handle = FileHandle(self, file, attr, flags, epoch)
        file.handles.add(handle)
        return handle

    def release_now(self, handle: FileHandle, file: OpenFile) -> bool:
        """End a handle if that needs neither a commit nor a round trip; return whether it ended."""
        if handle.writable and (file.writer.dirty or self._write_path.durable_close):
            return False
        if self._light is None or handle.hold is not None or handle.epoch != self._meta.epoch:
            return False
        if not self._light.release_now(file.ino):
            return False
        self._remove(handle, file)
        return True

    def _remove(self, handle: FileHandle, file: OpenFile) -> None:
        file.handles.discard(handle)
        if not file.handles and self._files.get(file.ino) is file:
            del self._files[file.ino]

    async def release(self, handle: FileHandle, file: OpenFile, *, all_files: bool) -> None:
        """End a handle: commit its bytes, then release the inode."""
        if self.release_now(handle, file):
            return
        task = asyncio.create_task(self._release(handle, file, all_files))
        self._write_path.tasks.add(task)
        task.add_done_callback(self._write_path.tasks.discard)
        # A cancelled caller does not interrupt it: the next open must see the bytes.
        await asyncio.shield(task)

    async def _release(self, handle: FileHandle, file: OpenFile, all_files: bool) -> None:
        try:
            if handle.writable:
                durable = self._write_path.durable_close
                await file.writer.commit(durable=durable, all_files=all_files)
        finally:
            self._stores.holds.end(handle.hold)
            self._remove(handle, file)
        if handle.epoch == self._meta.epoch:
            try:
                await self._meta.release(file.ino)
            except Fenced:
                # The epoch has ended, and all its open files with it.
                return

    async def close(self) -> WrkfsError | None:
        """Close all handles; return the last error that one of them reported."""
        loss: WrkfsError | None = None
        for file in list(self._files.values()):
            for handle in list(file.handles):
                try:
                    await handle.close()
                except WrkfsError as error:
                    loss = error
        return loss

    # -- reading --

    async def read(self, file: OpenFile, offset: int, size: int, ahead: int) -> BytesLike:
        """Return bytes of an open file: committed before this call, or dirty in this session."""
        await file.writer.settle()
        # Dirty bytes first: a commit may move them to the database during this call.
        dirty = file.writer.overlay(offset, offset + size)
        dirty_end = file.writer.end
        if len(dirty) == 1 and len(dirty[0][1]) == size:
            return dirty[0][1]
        layout = await self._layout(file)
        end = min(offset + size, max(layout.size, dirty_end))
        try:
            data = await self._bytes(layout, offset, end, ahead)
        except Missing:
            # A compaction replaced slices of this version, and deleted their objects.
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

    async def read_snapshot(
        self, handle: FileHandle, layout: FileLayout, offset: int, size: int, ahead: int
    ) -> BytesLike:
        """Return bytes of a snapshot. Slices are immutable, so no round trip is necessary."""
        end = min(offset + size, layout.size)
        try:
            return await self._bytes(layout, offset, end, ahead)
        except Missing:
            fresh = FileLayout(await self._meta.file_map(handle.ino))
            if self._stores.holds.expired(handle.hold):
                hours = self._stores.holds.max_age / 3600
                raise Unavailable(
                    f"the snapshot is older than {hours:g} h, and its data may be deleted; "
                    "open the file again"
                ) from None
            if fresh.version != layout.version or fresh.between(offset, end) == layout.between(
                offset, end
            ):
                raise
            handle.snapshot = fresh
            return await self._bytes(fresh, offset, end, ahead)

    async def _bytes(self, layout: FileLayout, start: int, end: int, ahead: int) -> BytesLike:
        return b"" if end <= start else await self._reader.read(layout, start, end, ahead)

    async def _layout(self, file: OpenFile) -> FileLayout:
        """Return the current layout: one round trip, two if the file has changed."""
        committed = self._attributes.committed.get(file.ino)
        layout = file.layout
        if layout is not None and (committed is None or committed.version <= layout.version):
            attr = await self._meta.getattr(file.ino)
            # After a crash of the database the same version may mean other bytes.
            if attr.version == layout.version and file.layout is not None:
                return layout
        layout = FileLayout(self._stores.inspect(await self._meta.file_map(file.ino)))
        if file.layout is None or file.layout.version <= layout.version:
            file.layout = layout
        return layout

    async def committed_layout(self, file: OpenFile) -> FileLayout:
        """Return the layout of a file with all bytes that this session has written."""
        await file.writer.commit(durable=False)
        return await self._layout(file)

    def note_fragmented(self, ino: Ino) -> None:
        """Record that a file may have many refs: upkeep compacts it."""
        self._stores.note_fragmented(ino)


class FileRanges:
    """Ranges of the open files of one session.

    Each call first commits what this session wrote, so it is in order with the writes before it.
    """

    def __init__(
        self, meta: FileStore, table: OpenFileTable, attributes: AttributeCache, change: Change
    ) -> None:
        """`change` makes a call of the store, again in a new epoch after a fence."""
        self._meta = meta
        self._table = table
        self._attributes = attributes
        self._change = change

    async def next_data(self, handle: FileHandle, offset: int) -> int:
        """Return the first offset from `offset` on that is not in a hole (SEEK_DATA).

        Raises NoSuchAddress if there is none before the end of the file.
        """
        layout = await self._table.committed_layout(handle.file)
        position = layout.next_data(offset) if offset >= 0 else None
        if position is None:
            raise NoSuchAddress
        return position

    async def next_hole(self, handle: FileHandle, offset: int) -> int:
        """Return the first offset from `offset` on that is in a hole, or the size (SEEK_HOLE).

        Raises NoSuchAddress for an offset behind the file.
        """
        layout = await self._table.committed_layout(handle.file)
        if not 0 <= offset < layout.size:
            raise NoSuchAddress
        return layout.next_hole(offset)

    async def allocate(
        self, handle: FileHandle, start: int, length: int, *, clear: bool, grow: bool
    ) -> None:
        """Clear a range, or check the room for it (`FileStore.allocate`)."""
        _check_writable(handle)
        async with handle.file.writer.resizing():
            attr = await self._change(
                lambda: self._meta.allocate(handle.ino, start, length, clear=clear, grow=grow)
            )
            self._attributes.record(attr)

    async def copy(
        self, source: FileHandle, start: int, target: FileHandle, to: int, length: int
    ) -> int:
        """Copy a range by sharing slices; return the number of bytes, 0 at the end of the source.

        It may be less than `length`. Raises InvalidArgument if two ranges of one file overlap.
        """
        if not source.readable:
            raise BadDescriptor("the source of the copy is not open for reading")
        _check_writable(target)
        await source.file.writer.commit(durable=False)
        async with target.file.writer.resizing():
            for _ in range(_TRIES):
                size = (await self._meta.getattr(source.ino)).size
                count = min(length, size - start, COPY_MAX)
                if count <= 0:
                    return 0
                try:
                    attr = await self._copy(source, start, target, to, count)
                except OutOfRange:
                    continue
                self._attributes.record(attr)
                self._table.note_read(source.ino)
                return count
        raise OutOfRange("the source became shorter several times during the copy; try again")

    async def _copy(
        self, source: FileHandle, start: int, target: FileHandle, to: int, count: int
    ) -> Attr:
        return await self._change(
            lambda: self._meta.copy_range(source.ino, start, target.ino, to, count)
        )


def _check_writable(handle: FileHandle) -> None:
    if not handle.writable:
        raise BadDescriptor("the file is not open for writing")
