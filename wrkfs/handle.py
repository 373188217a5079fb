"""Open files of a `Filesystem`: the state that the handles of one inode share, and the handles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from wrkfs.errors import BadDescriptor, InvalidArgument, WrkfsError
from wrkfs.layout import FRAGMENTED
from wrkfs.meta import rules
from wrkfs.reader import ReadAhead
from wrkfs.writer import Writer

if TYPE_CHECKING:
    from wrkfs.layout import FileLayout
    from wrkfs.types import Attr, BytesLike, Commit, Ino
    from wrkfs.write_path import WritePath

_SYNC_FLAGS = os.O_SYNC | os.O_DSYNC


class HandleOwner(Protocol):
    """The table that open files and handles belong to."""

    async def read(self, file: OpenFile, offset: int, size: int, ahead: int) -> BytesLike:
        """Return bytes of an open file: committed before this call, or dirty in this session."""
        ...

    async def read_snapshot(
        self, handle: FileHandle, layout: FileLayout, offset: int, size: int, ahead: int
    ) -> BytesLike:
        """Return bytes of a handle's snapshot."""
        ...

    async def release(self, handle: FileHandle, file: OpenFile, *, all_files: bool) -> None:
        """End a handle; with `all_files`, other answered changes become durable too."""
        ...

    def note_read(self, ino: Ino) -> None:
        """Record that a file was read. Its access time moves if it is due."""
        ...

    def record(self, attr: Attr) -> None:
        """Cache the attributes that a change by this session returned."""
        ...

    def note_fragmented(self, ino: Ino) -> None:
        """Record that a file may have many refs: upkeep compacts it."""
        ...


class OpenFile:
    """The state that the handles of one inode share.

    Critical section: `layout` is replaced, never changed; of two fetches the newer version stays.
    """

    __slots__ = (
        "_extended",
        "_inspected",
        "_table",
        "_write_path",
        "handles",
        "ino",
        "layout",
        "writer",
    )

    def __init__(self, table: HandleOwner, ino: Ino, write_path: WritePath) -> None:
        self.ino = ino
        self.handles: set[FileHandle] = set()
        self.layout: FileLayout | None = None
        self.writer = Writer(ino, write_path, self._on_commit, self.report_loss)
        self._table = table
        self._write_path = write_path
        self._inspected = 0
        """Version at the last call of `note_fragmented`, or of the last map from the store."""
        self._extended: FileLayout | None = None
        """The layout, if a commit has extended it."""

    def _on_commit(self, attr: Attr, commit: Commit) -> None:
        self._table.record(attr)
        # Each version adds a ref. So a file that is only written is found without its map.
        if self.layout is not None and self.layout is not self._extended:
            self._inspected = max(self._inspected, self.layout.version)
        if attr.version - self._inspected >= FRAGMENTED:
            self._inspected = attr.version
            self._table.note_fragmented(self.ino)
        self._extend_layout(attr, commit)

    def _extend_layout(self, attr: Attr, commit: Commit) -> None:
        """Add the extents of a commit to the layout, which saves the next read a round trip.

        Each piece of an extent adds one to the version, and so does any other change. So the
        versions show whether another change came between.
        """
        layout = self.layout
        if layout is None or layout.segment_count >= FRAGMENTED:
            return
        base = layout.size if commit.append else 0
        count = sum(1 for extent in commit.extents for _ in rules.pieces(extent, base))
        if attr.version == layout.version + count:
            self.layout = self._extended = layout.extended(commit.extents, base, attr)

    @property
    def durable_close(self) -> bool:
        """True if a close makes the bytes durable."""
        return self._write_path.durable_close

    async def sync_changes(self) -> None:
        """Make all answered changes durable, but not the dirty bytes of this file.

        Costs nothing if a crash could undo no change. Raises Unavailable.
        """
        if self.durable_close and self._write_path.changes > self._write_path.durable:
            await self._write_path.sync_all()

    def report_loss(self, error: WrkfsError) -> None:
        """Report lost bytes: each handle that is open now raises the error once."""
        for handle in self.handles:
            handle.fail(error)


class FileHandle:
    """One open file description. Any calls may interleave; `close` is the last one."""

    __slots__ = (
        "_ahead",
        "_error",
        "_file",
        "_flags",
        "_lost",
        "_table",
        "attr",
        "epoch",
        "hold",
        "snapshot",
    )

    def __init__(
        self, table: HandleOwner, file: OpenFile, attr: Attr, flags: int, epoch: int
    ) -> None:
        self._table = table
        self._file: OpenFile | None = file
        self._flags = flags
        self._error: WrkfsError | None = None
        self._lost: WrkfsError | None = None
        self._ahead = ReadAhead()
        self.attr = attr
        self.epoch = epoch
        self.hold: object = None
        """Token of the hold that protects `snapshot` from garbage collection."""
        self.snapshot: FileLayout | None = None
        """Layout that `open_snapshot` read: reads return its bytes, whatever is written later."""

    @property
    def ino(self) -> Ino:
        """The file's inode."""
        return self.attr.ino

    @property
    def file(self) -> OpenFile:
        """The state that all handles of the inode share. Raises BadDescriptor after `close`."""
        if self._file is None:
            raise BadDescriptor("the handle is closed")
        return self._file

    @property
    def readable(self) -> bool:
        """True if the file was opened for reading."""
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    @property
    def writable(self) -> bool:
        """True if the file was opened for writing."""
        return self._flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def _appending(self) -> bool:
        return bool(self._flags & os.O_APPEND)

    def fail(self, error: WrkfsError) -> None:
        """Store an error for the next flush, fsync or close. The first error stays."""
        if self._error is None:
            self._error = error

    def lose_locks(self, error: WrkfsError) -> None:
        """Record that a lock was lost: the program must not go on as if it had the lock.

        All further reads, writes and locks raise `error`, and so does the next flush.
        """
        self._lost = error
        self.fail(error)

    @property
    def has_lost_locks(self) -> bool:
        """True after `lose_locks`."""
        return self._lost is not None

    def check_locks(self) -> None:
        """Raise the error of `lose_locks`, if there is one."""
        if self._lost is not None:
            raise self._lost

    async def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end of the file.

        Raises Corrupt, Unavailable.
        """
        return bytes(await self.read_view(offset, size))

    async def read_view(self, offset: int, size: int) -> BytesLike:
        """Read as `read` does, but do not copy bytes that are already in one buffer."""
        if not self.readable:
            raise BadDescriptor("the handle is not open for reading")
        if offset < 0 or size < 0:
            raise InvalidArgument("offset or size is negative")
        self.check_locks()
        if self.snapshot is not None:
            ahead = self._ahead.plan(offset, size)
            return await self._table.read_snapshot(self, self.snapshot, offset, size, ahead)
        if not self._flags & os.O_NOATIME:
            self._table.note_read(self.ino)
        return await self._table.read(self.file, offset, size, self._ahead.plan(offset, size))

    async def write(self, offset: int, data: BytesLike) -> int:
        """Write all bytes at `offset`, or at the current end of the file with O_APPEND.

        With O_SYNC the bytes are durable when the call returns. The exception is a request that
        begins within a page and ends at a page border: the kernel may send the rest of the write(2)
        later, and sends an fsync after it.
        """
        if not self.writable:
            raise BadDescriptor("the handle is not open for writing")
        self.check_locks()
        writer, past_pages = self.file.writer, self._flags & (os.O_APPEND | os.O_DIRECT)
        await writer.write(offset, data, append=self._appending, may_be_split=not past_pages)
        if self._flags & _SYNC_FLAGS and (past_pages or not writer.pending):
            await self.fsync()
        return len(data)

    async def flush(self) -> None:
        """Make everything written visible, or raise the error that caused a loss.

        With `WritePath.durable_close` it also becomes durable. For a read-only handle this covers
        names and attributes, but no bytes of other handles.
        """
        if self.writable:
            await self.file.writer.commit(durable=self.file.durable_close)
        else:
            await self.file.sync_changes()
        self._raise_error()

    async def fsync(self) -> None:
        """Flush, also through a read-only handle, and cover earlier writes of other sessions."""
        await self.file.writer.commit(durable=True, all_sessions=True, between_writes=True)
        self._raise_error()
        self.check_locks()

    async def close(self, *, flushed: bool = False) -> None:
        """Flush and release the file; raises what `flush` would raise. Idempotent.

        After a call of `flush`, pass `flushed`: then only later bytes are made durable.
        """
        file, self._file = self._file, None
        if file is not None:
            try:
                if not (flushed or self.writable or self.snapshot is not None):
                    await file.sync_changes()
            except WrkfsError as error:
                self.fail(error)
            finally:
                await self._table.release(self, file, all_files=not flushed)
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def error(self) -> WrkfsError | None:
        """The error that the next flush, fsync or close raises."""
        return self._error
