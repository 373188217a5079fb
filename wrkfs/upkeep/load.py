"""Fills an empty volume from a tar archive: a dump, or any other.

Everything is made in a directory of the root first, and moved to its place when the archive has
been read to its end. A load that was interrupted is begun anew by the next one, or finished when
only the moving was left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from wrkfs.errors import Exists, InvalidArgument, NoData, NotEmpty, NotFound, NotSupported
from wrkfs.layout import MIB
from wrkfs.types import ROOT_INO, Caller, RenameFlags, SetAttr
from wrkfs.upkeep.dump import (
    BEGINS,
    COMPLETE,
    ESCAPED,
    SOCKET,
    SPARSE_NAME,
    XATTR,
    nanoseconds,
    unescaped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Attr, Ino

STAGING = b".wrkfs-load"
"""Where a load puts what it has read."""
READ_WHOLE = b"trusted.wrkfs.loaded"
"""Attribute of the staging directory once the archive has been read; the root's own attributes."""
PIECE = 4 * MIB
SMALL = MIB
"""Files up to this size are written beside one another."""
WRITERS = 16
SCAN = 1000
"""Entries of a directory asked for at once."""
DEVICES = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK}


@dataclass(slots=True)
class Loaded:
    """What was made. `skipped`: attributes of namespaces that the drive does not keep."""

    entries: int = 0
    bytes: int = 0
    skipped: int = 0
    finished: bool = False
    """Only the end of an earlier load was left to do; the archive was not read."""


async def load(
    fs: Filesystem, source: IO[bytes], *, progress: Callable[[int, int], None]
) -> Loaded:
    """Loads the archive. NotEmpty, InvalidArgument for what is no archive, QuotaExceeded.

    `progress(bytes, 0)` is told how far it is.
    """
    names = await _names(fs, ROOT_INO)
    done = Loaded()
    if STAGING in names:
        staging = (await fs.lookup(ROOT_INO, STAGING)).ino
        with contextlib.suppress(NoData):
            await fs.getxattr(staging, READ_WHOLE)
            done.finished = True
    if not done.finished:
        if names - {STAGING}:
            raise NotEmpty("load fills empty volumes only")
        if names:
            await fs.remove_tree(ROOT_INO, STAGING)
        staging = (await fs.mkdir(ROOT_INO, STAGING, 0o700, Caller(0, 0))).ino
        await _Archive(fs, staging, source, done, progress).read()
    await _finish(fs, (await fs.lookup(ROOT_INO, STAGING)).ino)
    return done


async def _names(fs: Filesystem, ino: Ino) -> set[bytes]:
    found: set[bytes] = set()
    after = 0
    while page := await fs.readdir(ino, after, SCAN):
        found |= {entry.name for entry in page}
        after = page[-1].cookie
    return found


async def _finish(fs: Filesystem, staging: Ino) -> None:
    """Moves everything to its place. May be repeated from any point."""
    root = json.loads(await fs.getxattr(staging, READ_WHOLE))
    for name in sorted(await _names(fs, staging)):
        await fs.rename(staging, name, ROOT_INO, name, RenameFlags.NOREPLACE)
    for name in await fs.listxattr(staging):
        if name != READ_WHOLE:
            await fs.setxattr(ROOT_INO, name, await fs.getxattr(staging, name))
    await fs.rmdir(ROOT_INO, STAGING)
    if root:
        await fs.setattr(ROOT_INO, SetAttr(**root))
    await fs.sync()


class _Archive:
    """Reads one archive into the staging directory.

    Critical sections: entries are taken one after the other; small files are written beside the
    reading (`_writing`), and what needs them to stand (links, the end) waits for all of them.
    """

    def __init__(
        self,
        fs: Filesystem,
        staging: Ino,
        source: IO[bytes],
        done: Loaded,
        progress: Callable[[int, int], None],
    ) -> None:
        self._fs = fs
        self._source = source
        self._done = done
        self._progress = progress
        self._directories: dict[bytes, Ino] = {b"": staging}
        self._later: dict[bytes, SetAttr] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._escaped = True
        """Whether names of attributes are escaped: by GNU tar, and by dumps but the oldest."""

    async def read(self) -> None:
        """Everything, durably."""
        begun = complete = False
        try:
            with await asyncio.to_thread(self._open) as archive:
                while (member := await asyncio.to_thread(archive.next)) is not None:
                    vars(archive)["members"] = []  # what has been read is not kept
                    comment = member.pax_headers.get("comment")
                    if comment == BEGINS:
                        begun = True
                        self._escaped = ESCAPED in member.pax_headers
                    complete |= comment == COMPLETE
                    await self._member(archive, member)
            await self._drain()
        except (tarfile.TarError, EOFError) as error:
            raise InvalidArgument(f"not a whole tar archive: {error}") from None
        finally:
            await self._abandon()
        if begun and not complete:
            raise InvalidArgument("the archive ends before its end; load it again when it is whole")
        for path, changes in reversed(self._later.items()):
            if path:
                await self._fs.setattr(self._directories[path], changes)
        root = self._later.get(b"")
        values = {} if root is None else {k: getattr(root, k) for k in _KEPT}
        await self._fs.sync()
        await self._fs.setxattr(self._directories[b""], READ_WHOLE, json.dumps(values).encode())

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(
            fileobj=self._source, mode="r|*", encoding="utf-8", errors="surrogateescape"
        )

    async def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        # tarfile prefers the other name when it has a record of its own, as in older dumps.
        path = _path(member.pax_headers.get(SPARSE_NAME, member.name))
        changes = _changes(member)
        if member.isdir():
            self._later[path] = changes
            await self._xattrs(await self._directory(path), member)
            return
        if not path:
            raise InvalidArgument("an entry of the archive has no name")
        parent, name = await self._place(path)
        caller = Caller(member.uid, member.gid)
        self._done.entries += 1
        if member.isreg() and SOCKET not in member.pax_headers:
            await self._file(archive, member, parent, name, changes)
            return
        if member.islnk():
            await self._drain()
            if _path(member.linkname) != path:
                await self._link(_path(member.linkname), parent, name)
            return
        if member.issym():
            made = await self._make(
                self._fs.symlink, parent, name, os.fsencode(member.linkname), caller
            )
        else:
            kind, device = _node(member)
            made = await self._make(
                self._fs.mknod, parent, name, kind | member.mode, device, caller
            )
        await self._xattrs(made.ino, member)
        if member.issym():
            changes = SetAttr(atime_ns=changes.atime_ns, mtime_ns=changes.mtime_ns)
        await self._fs.setattr(made.ino, changes)

    async def _file(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        parent: Ino,
        name: bytes,
        changes: SetAttr,
    ) -> None:
        # The stream itself: tarfile would read holes as zeros.
        source = archive.fileobj
        if source is None:
            raise InvalidArgument("the archive is closed")
        sparse = getattr(member, "sparse", None)
        await asyncio.to_thread(source.seek, member.offset_data)
        if sparse is None and member.size <= SMALL:
            data = await asyncio.to_thread(source.read, member.size)
            while len(self._writing) >= WRITERS:
                await self._ended(asyncio.FIRST_COMPLETED)
            self._start(self._small(member, parent, name, data, changes))
            return
        handle = await self._create(member, parent, name)
        try:
            for start, length in [(0, member.size)] if sparse is None else sparse:
                for at in range(start, start + length, PIECE):
                    size = min(PIECE, start + length - at)
                    data = await asyncio.to_thread(source.read, size)
                    if len(data) != size:
                        raise InvalidArgument(f"entry {member.name!r} is cut short")
                    await handle.write(at, data)
                    self._told(size)
        finally:
            await handle.close()
        if sparse is not None:
            await self._fs.setattr(handle.ino, SetAttr(size=member.size))
        await self._xattrs(handle.ino, member)
        await self._fs.setattr(handle.ino, changes)

    async def _small(
        self, member: tarfile.TarInfo, parent: Ino, name: bytes, data: bytes, changes: SetAttr
    ) -> None:
        if len(data) != member.size:
            raise InvalidArgument(f"entry {member.name!r} is cut short")
        handle = await self._create(member, parent, name)
        try:
            if data:
                await handle.write(0, data)
        finally:
            await handle.close()
        await self._xattrs(handle.ino, member)
        await self._fs.setattr(handle.ino, changes)
        self._told(len(data))

    async def _create(self, member: tarfile.TarInfo, parent: Ino, name: bytes) -> FileHandle:
        flags, caller = os.O_WRONLY | os.O_EXCL, Caller(member.uid, member.gid)
        try:
            return (await self._fs.create(parent, name, 0o600, flags, caller))[1]
        except Exists:
            await self._fs.unlink(parent, name)
        return (await self._fs.create(parent, name, 0o600, flags, caller))[1]

    async def _link(self, target: bytes, parent: Ino, name: bytes) -> None:
        directory, _, last = target.rpartition(b"/")
        try:
            ino = (await self._fs.lookup(self._directories[directory], last)).ino
        except (KeyError, NotFound):
            raise InvalidArgument(
                f"a hard link to {os.fsdecode(target)!r}, which the archive has not"
            ) from None
        await self._make(lambda parent, name: self._fs.link(ino, parent, name), parent, name)

    async def _make(
        self,
        call: Callable[..., Coroutine[Any, Any, Attr]],
        parent: Ino,
        name: bytes,
        *rest: object,
    ) -> Attr:
        try:
            return await call(parent, name, *rest)
        except Exists:
            # A later entry of the same name counts.
            await self._fs.unlink(parent, name)
        return await call(parent, name, *rest)

    async def _xattrs(self, ino: Ino, member: tarfile.TarInfo) -> None:
        for key, value in member.pax_headers.items():
            if key.startswith(XATTR):
                name = key.removeprefix(XATTR)
                name = unescaped(name) if self._escaped else name
                try:
                    await self._fs.setxattr(ino, os.fsencode(name), os.fsencode(value))
                except NotSupported:
                    self._done.skipped += 1

    async def _place(self, path: bytes) -> tuple[Ino, bytes]:
        """Directory and name of a path; directories that the archive left out are made."""
        above, _, name = path.rpartition(b"/")
        return await self._directory(above), name

    async def _directory(self, path: bytes) -> Ino:
        known = self._directories.get(path)
        if known is not None:
            return known
        # From the top: a path may have 10^3 names.
        names = path.split(b"/")
        for count in range(1, len(names) + 1):
            prefix = b"/".join(names[:count])
            if prefix not in self._directories:
                above = self._directories[b"/".join(names[: count - 1])]
                try:
                    made = await self._fs.mkdir(above, names[count - 1], 0o755, Caller(0, 0))
                except Exists:
                    raise InvalidArgument(
                        f"{os.fsdecode(prefix)!r} is a directory and something else"
                    ) from None
                self._directories[prefix] = made.ino
                self._done.entries += 1
        return self._directories[path]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._writing.add(asyncio.create_task(work))

    async def _ended(self, until: str) -> None:
        """Waits for writers; raises what one of them raised."""
        done, self._writing = await asyncio.wait(self._writing, return_when=until)
        for task in done:
            task.result()

    async def _drain(self) -> None:
        while self._writing:
            await self._ended(asyncio.ALL_COMPLETED)

    async def _abandon(self) -> None:
        """Ends the writers that are left: the load has failed already."""
        left, self._writing = self._writing, set()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _told(self, size: int) -> None:
        self._done.bytes += size
        self._progress(self._done.bytes, 0)


_KEPT = ("mode", "uid", "gid", "atime_ns", "mtime_ns")


def _node(member: tarfile.TarInfo) -> tuple[int, int]:
    """Type and device number of what `mknod` makes. InvalidArgument."""
    if member.isreg():
        return stat.S_IFSOCK, 0
    if member.isfifo():
        return stat.S_IFIFO, 0
    if member.type not in DEVICES:
        raise InvalidArgument(f"entry {member.name!r} is of a kind that is not known")
    return DEVICES[member.type], os.makedev(member.devmajor, member.devminor)


def _changes(member: tarfile.TarInfo) -> SetAttr:
    times = {}
    for field, default in (("mtime", member.mtime), ("atime", member.mtime)):
        text = member.pax_headers.get(field)
        try:
            times[field] = int(default) * 10**9 if text is None else nanoseconds(text)
        except ValueError:
            raise InvalidArgument(f"entry {member.name!r} has no sensible {field}") from None
    return SetAttr(
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        atime_ns=times["atime"],
        mtime_ns=times["mtime"],
    )


def _path(name: str) -> bytes:
    """A path of the archive, below the root whatever it says.

    InvalidArgument for `..`, and for what cannot be moved to the root while a load works there.
    """
    names = [part for part in os.fsencode(name).split(b"/") if part not in (b"", b".")]
    if b".." in names:
        raise InvalidArgument(f"entry {name!r} leads out of the archive")
    if names[:1] == [STAGING]:
        raise InvalidArgument(
            f"entry {name!r} has the name of the directory that a load works in; leave it out"
        )
    return b"/".join(names)
