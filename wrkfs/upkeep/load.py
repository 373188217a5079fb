"""Fills an empty volume from a tar archive: a dump, or any other.

The load creates everything in a staging directory of the root, reads the archive to its end, and
then moves everything into place. After an interruption the next load starts again, or finishes the
move if the archive was complete.
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
    unescape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from wrkfs.fs import Filesystem
    from wrkfs.handle import FileHandle
    from wrkfs.types import Attr, Ino

STAGING = b".wrkfs-load"
"""Name of the staging directory."""
READ_WHOLE = b"trusted.wrkfs.loaded"
"""Attribute of the staging directory after the end of the archive: the root's own attributes."""
PIECE = 4 * MIB
SMALL = MIB
"""Maximum size of files that are written concurrently."""
WRITERS = 16
SCAN = 1000
"""Number of directory entries in one request."""
DEVICES = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK}


@dataclass(slots=True)
class LoadResult:
    """The result of a load. `skipped`: number of extended attributes in unsupported namespaces."""

    entries: int = 0
    bytes: int = 0
    skipped: int = 0
    finished: bool = False
    """True if the call only finished an earlier load, and did not read the archive."""


async def load(
    fs: Filesystem, source: IO[bytes], *, progress: Callable[[int, int], None]
) -> LoadResult:
    """Load the archive.

    Calls `progress(bytes, 0)`. Raises NotEmpty, QuotaExceeded, and InvalidArgument for an invalid
    archive.
    """
    names = await _names(fs, ROOT_INO)
    result = LoadResult()
    if STAGING in names:
        staging = (await fs.lookup(ROOT_INO, STAGING)).ino
        with contextlib.suppress(NoData):
            await fs.getxattr(staging, READ_WHOLE)
            result.finished = True
    if not result.finished:
        if names - {STAGING}:
            raise NotEmpty("the volume contains files, and load fills only an empty volume")
        if names:
            await fs.remove_tree(ROOT_INO, STAGING)
        staging = (await fs.mkdir(ROOT_INO, STAGING, 0o700, Caller(0, 0))).ino
        await _Archive(fs, staging, source, result, progress).read()
    await _finish(fs, (await fs.lookup(ROOT_INO, STAGING)).ino)
    return result


async def _names(fs: Filesystem, ino: Ino) -> set[bytes]:
    names: set[bytes] = set()
    after = 0
    while page := await fs.readdir(ino, after, SCAN):
        names |= {entry.name for entry in page}
        after = page[-1].cookie
    return names


async def _finish(fs: Filesystem, staging: Ino) -> None:
    """Move everything into place. May be repeated after an interruption at any point."""
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

    Critical sections: entries are read one after the other. Tasks in `_writers` write small files
    at the same time. Hard links and the end of the archive wait for all of these tasks.
    """

    def __init__(
        self,
        fs: Filesystem,
        staging: Ino,
        source: IO[bytes],
        result: LoadResult,
        progress: Callable[[int, int], None],
    ) -> None:
        self._fs = fs
        self._source = source
        self._result = result
        self._progress = progress
        self._directories: dict[bytes, Ino] = {b"": staging}
        self._directory_changes: dict[bytes, SetAttr] = {}
        """Attributes of directories, which are set after their contents exist."""
        self._writers: set[asyncio.Task[None]] = set()
        self._escaped = True
        """True if names of attributes are escaped: GNU tar and all but the oldest dumps do so."""

    async def read(self) -> None:
        """Read the whole archive and make its contents durable."""
        is_dump = complete = False
        try:
            with await asyncio.to_thread(self._open) as archive:
                while (member := await asyncio.to_thread(archive.next)) is not None:
                    vars(archive)["members"] = []  # the list would grow with the archive
                    comment = member.pax_headers.get("comment")
                    if comment == BEGINS:
                        is_dump = True
                        self._escaped = ESCAPED in member.pax_headers
                    complete |= comment == COMPLETE
                    await self._member(archive, member)
            await self._drain()
        except (tarfile.TarError, EOFError) as error:
            raise InvalidArgument(f"the input is not a complete tar archive: {error}") from None
        finally:
            await self._cancel_writers()
        if is_dump and not complete:
            raise InvalidArgument("the dump is incomplete: its last entry is missing")
        for path, changes in reversed(self._directory_changes.items()):
            if path:
                await self._fs.setattr(self._directories[path], changes)
        root = self._directory_changes.get(b"")
        values = {} if root is None else {name: getattr(root, name) for name in _ROOT_ATTRIBUTES}
        await self._fs.sync()
        await self._fs.setxattr(self._directories[b""], READ_WHOLE, json.dumps(values).encode())

    def _open(self) -> tarfile.TarFile:
        return tarfile.open(
            fileobj=self._source, mode="r|*", encoding="utf-8", errors="surrogateescape"
        )

    async def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        # In older dumps, tarfile prefers the record `path` to the sparse file's own name.
        path = _path(member.pax_headers.get(SPARSE_NAME, member.name))
        changes = _changes(member)
        if member.isdir():
            self._directory_changes[path] = changes
            await self._xattrs(await self._directory(path), member)
            return
        if not path:
            raise InvalidArgument("an entry of the archive has no name")
        parent, name = await self._place(path)
        caller = Caller(member.uid, member.gid)
        self._result.entries += 1
        if member.isreg() and SOCKET not in member.pax_headers:
            await self._file(archive, member, parent, name, changes)
            return
        if member.islnk():
            await self._drain()
            if _path(member.linkname) != path:
                await self._link(_path(member.linkname), parent, name)
            return
        if member.issym():
            attr = await self._create_name(
                self._fs.symlink, parent, name, os.fsencode(member.linkname), caller
            )
        else:
            kind, device = _node(member)
            attr = await self._create_name(
                self._fs.mknod, parent, name, kind | member.mode, device, caller
            )
        await self._xattrs(attr.ino, member)
        if member.issym():
            changes = SetAttr(atime_ns=changes.atime_ns, mtime_ns=changes.mtime_ns)
        await self._fs.setattr(attr.ino, changes)

    async def _file(
        self,
        archive: tarfile.TarFile,
        member: tarfile.TarInfo,
        parent: Ino,
        name: bytes,
        changes: SetAttr,
    ) -> None:
        # This reads the stream itself, because tarfile would read holes as zeros.
        source = archive.fileobj
        if source is None:
            raise InvalidArgument("the archive is closed")
        sparse = getattr(member, "sparse", None)
        await asyncio.to_thread(source.seek, member.offset_data)
        if sparse is None and member.size <= SMALL:
            data = await asyncio.to_thread(source.read, member.size)
            while len(self._writers) >= WRITERS:
                await self._wait_for_writers(asyncio.FIRST_COMPLETED)
            writer = self._small_file(member, parent, name, data, changes)
            self._writers.add(asyncio.create_task(writer))
            return
        handle = await self._create(member, parent, name)
        try:
            for start, length in [(0, member.size)] if sparse is None else sparse:
                for at in range(start, start + length, PIECE):
                    size = min(PIECE, start + length - at)
                    data = await asyncio.to_thread(source.read, size)
                    if len(data) != size:
                        raise InvalidArgument(f"entry {member.name!r} is incomplete")
                    await handle.write(at, data)
                    self._count_bytes(size)
        finally:
            await handle.close()
        if sparse is not None:
            await self._fs.setattr(handle.ino, SetAttr(size=member.size))
        await self._xattrs(handle.ino, member)
        await self._fs.setattr(handle.ino, changes)

    async def _small_file(
        self, member: tarfile.TarInfo, parent: Ino, name: bytes, data: bytes, changes: SetAttr
    ) -> None:
        if len(data) != member.size:
            raise InvalidArgument(f"entry {member.name!r} is incomplete")
        handle = await self._create(member, parent, name)
        try:
            if data:
                await handle.write(0, data)
        finally:
            await handle.close()
        await self._xattrs(handle.ino, member)
        await self._fs.setattr(handle.ino, changes)
        self._count_bytes(len(data))

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
                f"{os.fsdecode(name)!r} is a hard link to {os.fsdecode(target)!r}, "
                "which is not in the archive"
            ) from None
        await self._create_name(lambda parent, name: self._fs.link(ino, parent, name), parent, name)

    async def _create_name(
        self,
        call: Callable[..., Coroutine[Any, Any, Attr]],
        parent: Ino,
        name: bytes,
        *rest: object,
    ) -> Attr:
        try:
            return await call(parent, name, *rest)
        except Exists:
            # The last entry of a name replaces earlier ones.
            await self._fs.unlink(parent, name)
        return await call(parent, name, *rest)

    async def _xattrs(self, ino: Ino, member: tarfile.TarInfo) -> None:
        for key, value in member.pax_headers.items():
            if key.startswith(XATTR):
                name = key.removeprefix(XATTR)
                name = unescape(name) if self._escaped else name
                try:
                    await self._fs.setxattr(ino, os.fsencode(name), os.fsencode(value))
                except NotSupported:
                    self._result.skipped += 1

    async def _place(self, path: bytes) -> tuple[Ino, bytes]:
        """Return directory and name of a path; creates directories that the archive omits."""
        above, _, name = path.rpartition(b"/")
        return await self._directory(above), name

    async def _directory(self, path: bytes) -> Ino:
        existing = self._directories.get(path)
        if existing is not None:
            return existing
        # A loop, because a path may have 1,000 names.
        names = path.split(b"/")
        for count in range(1, len(names) + 1):
            prefix = b"/".join(names[:count])
            if prefix not in self._directories:
                above = self._directories[b"/".join(names[: count - 1])]
                try:
                    attr = await self._fs.mkdir(above, names[count - 1], 0o755, Caller(0, 0))
                except Exists:
                    raise InvalidArgument(
                        f"the archive has {os.fsdecode(prefix)!r} as a directory and as a file"
                    ) from None
                self._directories[prefix] = attr.ino
                self._result.entries += 1
        return self._directories[path]

    async def _wait_for_writers(self, until: str) -> None:
        """Wait for writers. Raises the error of a writer."""
        ended, self._writers = await asyncio.wait(self._writers, return_when=until)
        for task in ended:
            task.result()

    async def _drain(self) -> None:
        while self._writers:
            await self._wait_for_writers(asyncio.ALL_COMPLETED)

    async def _cancel_writers(self) -> None:
        """Cancel the remaining writers. There are none unless the load has failed."""
        tasks, self._writers = self._writers, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _count_bytes(self, size: int) -> None:
        self._result.bytes += size
        self._progress(self._result.bytes, 0)


_ROOT_ATTRIBUTES = ("mode", "uid", "gid", "atime_ns", "mtime_ns")


def _node(member: tarfile.TarInfo) -> tuple[int, int]:
    """Return type and device number for `mknod`. Raises InvalidArgument."""
    if member.isreg():
        return stat.S_IFSOCK, 0
    if member.isfifo():
        return stat.S_IFIFO, 0
    if member.type not in DEVICES:
        raise InvalidArgument(f"entry {member.name!r} has an unknown type")
    return DEVICES[member.type], os.makedev(member.devmajor, member.devminor)


def _changes(member: tarfile.TarInfo) -> SetAttr:
    times = {}
    for field, default in (("mtime", member.mtime), ("atime", member.mtime)):
        text = member.pax_headers.get(field)
        try:
            times[field] = int(default) * 10**9 if text is None else nanoseconds(text)
        except ValueError:
            raise InvalidArgument(f"entry {member.name!r} has an invalid {field}") from None
    return SetAttr(
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        atime_ns=times["atime"],
        mtime_ns=times["mtime"],
    )


def _path(name: str) -> bytes:
    """Return a path of the archive relative to the root.

    Raises InvalidArgument for `..`, and for the name of the staging directory.
    """
    names = [part for part in os.fsencode(name).split(b"/") if part not in (b"", b".")]
    if b".." in names:
        raise InvalidArgument(f"entry {name!r} leads out of the archive")
    if names[:1] == [STAGING]:
        raise InvalidArgument(
            f"entry {name!r} has the name of the directory that a load uses; "
            "remove it from the archive"
        )
    return b"/".join(names)
