"""Open files of a `Filesystem`: what the handles of an inode share, one open file description."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from wrkfs.errors import BadDescriptor, InvalidArgument, WrkfsError
from wrkfs.layout import FRAGMENTED
from wrkfs.reader import ReadAhead
from wrkfs.writer import Writer

if TYPE_CHECKING:
    from wrkfs.layout import FileLayout
    from wrkfs.types import Attr, BytesLike, Ino
    from wrkfs.write_path import WritePath

_SYNC_FLAGS = os.O_SYNC | os.O_DSYNC


class HandleOwner(Protocol):
    """What an open file asks of its Filesystem."""

    async def read(self, file: OpenFile, offset: int, size: int, ahead: int) -> BytesLike:
        """Bytes of an open file: committed by anyone before this call, or dirty here."""
        ...

    async def read_fixed(
        self, handle: FileHandle, layout: FileLayout, offset: int, size: int, ahead: int
    ) -> BytesLike:
        """Bytes of a handle's snapshot."""
        ...

    async def let_go(self, handle: FileHandle, file: OpenFile, *, others: bool) -> None:
        """The end of a handle."""
        ...

    def note_read(self, ino: Ino) -> None:
        """A file was read: its access time may have to move."""
        ...

    def learn(self, attr: Attr) -> None:
        """Keeps the attributes after an own change."""
        ...

    def note_fragmented(self, ino: Ino) -> None:
        """A file may have many refs: upkeep should look at it."""
        ...


class OpenFile:
    """What the handles of one inode share.

    Critical section: `layout` is replaced, never changed; of two fetches the newer version stays.
    """

    __slots__ = ("_fs", "_looked", "_path", "handles", "ino", "layout", "writer")

    def __init__(self, fs: HandleOwner, ino: Ino, path: WritePath) -> None:
        self.ino = ino
        self.handles: set[FileHandle] = set()
        self.layout: FileLayout | None = None
        self.writer = Writer(ino, path, self._committed, self.lose)
        self._fs = fs
        self._path = path
        self._looked = 0
        """Version up to which `note_fragmented` was told."""

    def _committed(self, attr: Attr) -> None:
        """Refs of a file that is never read are counted as they are made: one a version."""
        self._fs.learn(attr)
        since = max(self._looked, 0 if self.layout is None else self.layout.version)
        if attr.version - since >= FRAGMENTED:
            self._looked = attr.version
            self._fs.note_fragmented(self.ino)

    async def keep_changes(self) -> None:
        """Makes durable what the Filesystem has answered; the dirty bytes of this file stay so.

        Costs nothing while there is nothing that a crash could undo. Unavailable.
        """
        if self._path.changes > self._path.durable:
            await self._path.sync_all()

    def lose(self, error: WrkfsError) -> None:
        """Bytes are lost: every handle that is open now tells it once."""
        for handle in self.handles:
            handle.fail(error)


class FileHandle:
    """One open file description. Any calls may interleave; `close` is the last one."""

    __slots__ = ("_ahead", "_error", "_file", "_flags", "_fs", "attr", "epoch", "fixed", "hold")

    def __init__(self, fs: HandleOwner, file: OpenFile, attr: Attr, flags: int, epoch: int) -> None:
        self._fs = fs
        self._file: OpenFile | None = file
        self._flags = flags
        self._error: WrkfsError | None = None
        self._ahead = ReadAhead()
        self.attr = attr
        self.epoch = epoch
        self.hold: object = None
        """What keeps garbage collection from what `fixed` shows."""
        self.fixed: FileLayout | None = None
        """What `open_snapshot` found: reads show this, whatever is written later."""

    @property
    def ino(self) -> Ino:
        """The file's inode."""
        return self.attr.ino

    @property
    def file(self) -> OpenFile:
        """What all handles of the inode share. BadDescriptor after `close`."""
        if self._file is None:
            raise BadDescriptor("the handle is closed")
        return self._file

    @property
    def readable(self) -> bool:
        """Whether it was opened for reading."""
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    @property
    def writable(self) -> bool:
        """Whether it was opened for writing."""
        return self._flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def _appending(self) -> bool:
        return bool(self._flags & os.O_APPEND)

    def fail(self, error: WrkfsError) -> None:
        """Keeps the first error for the next flush, fsync or close."""
        if self._error is None:
            self._error = error

    async def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file. Corrupt, Unavailable."""
        return bytes(await self.read_view(offset, size))

    async def read_view(self, offset: int, size: int) -> BytesLike:
        """As `read`, without a last copy where the bytes stand in one buffer already."""
        if not self.readable:
            raise BadDescriptor("not open for reading")
        if offset < 0 or size < 0:
            raise InvalidArgument("negative offset or size")
        if self.fixed is not None:
            ahead = self._ahead.plan(offset, size)
            return await self._fs.read_fixed(self, self.fixed, offset, size, ahead)
        if not self._flags & os.O_NOATIME:
            self._fs.note_read(self.ino)
        return await self._fs.read(self.file, offset, size, self._ahead.plan(offset, size))

    async def write(self, offset: int, data: BytesLike) -> int:
        """Takes all bytes in; at the end of the file, wherever that is, with O_APPEND.

        With O_SYNC they are durable then, but for a write that begins within a page and ends with
        one: an fsync follows from the kernel, which may not have handed over all of it.
        """
        if not self.writable:
            raise BadDescriptor("not open for writing")
        writer, past_pages = self.file.writer, self._flags & (os.O_APPEND | os.O_DIRECT)
        await writer.write(offset, data, append=self._appending, in_pieces=not past_pages)
        if self._flags & _SYNC_FLAGS and (past_pages or not writer.pending):
            await self.fsync()
        return len(data)

    async def flush(self) -> None:
        """Everything written is durable and visible, or the error that lost some of it.

        Of a handle that is only read: names and attributes, but not the bytes of other handles.
        """
        if self.writable:
            await self.file.writer.commit(durable=True)
        else:
            await self.file.keep_changes()
        self._raise_error()

    async def fsync(self) -> None:
        """As `flush`, also of a handle that is only read, and of what others wrote before."""
        await self.file.writer.commit(durable=True, foreign=True, whole=True)
        self._raise_error()

    async def close(self, *, flushed: bool = False) -> None:
        """Flushes and lets go; raises what `flush` would. Idempotent.

        `flushed` is for who has called `flush`: only bytes that came after it are made durable.
        """
        file, self._file = self._file, None
        if file is not None:
            try:
                if not (flushed or self.writable or self.fixed is not None):
                    await file.keep_changes()
            except WrkfsError as error:
                self.fail(error)
            finally:
                await self._fs.let_go(self, file, others=not flushed)
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    @property
    def error(self) -> WrkfsError | None:
        """The loss that has not been told yet."""
        return self._error
