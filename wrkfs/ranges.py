"""Calls on ranges of open files: holes, room for writes, and copies that share slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.errors import BadDescriptor, NoSuchAddress, OutOfRange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wrkfs.attribute_cache import AttributeCache
    from wrkfs.handle import FileHandle
    from wrkfs.meta.interface.files import FileStore
    from wrkfs.open_files import OpenFileTable
    from wrkfs.types import Attr

    Change = Callable[[Callable[[], Awaitable[Attr]]], Awaitable[Attr]]

COPY_MAX = 1 << 30
"""Maximum number of bytes of one copy: it writes a row for each slice, under locks."""
_TRIES = 5
"""Attempts to copy from a file that others cut meanwhile."""


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
