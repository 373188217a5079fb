"""Writes a snapshot of a volume as a tar archive, in the pax format that every `tar` reads.

The archive contains file contents with holes (GNU's sparse format 1.0), hard and symbolic links,
fifos and devices, modes, owners, times to the nanosecond, and extended attributes. Tar has no
sockets: each socket is an empty file with a record that `load` reads. The first and the last entry
are the root. A comment in the last one shows that the archive is complete.
"""

from __future__ import annotations

import asyncio
import copy
import os
import stat
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

from wrkfs.data.s3 import S3Blocks
from wrkfs.layout import MIB, FileLayout
from wrkfs.meta.postgres.snapshot import open_snapshot
from wrkfs.reader import BlockReader
from wrkfs.upkeep.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.config import VolumeConfig
    from wrkfs.fs import Filesystem
    from wrkfs.types import Attr, BytesLike, Ino

BEGINS, COMPLETE = "wrkfs dump begins", "wrkfs dump complete"
"""Comments of the first and the last entry."""
PIECE = 4 * MIB
"""Number of bytes in one read of a file, and in one write of the archive."""
AHEAD = 16 * MIB
CACHE = 64 * MIB
"""Maximum size of cached blocks, in bytes."""
BLOCK = 512
"""Block size of tar."""
XATTR = "SCHILY.xattr."
"""Prefix of extended attributes in pax headers, as in GNU tar and libarchive."""
ESCAPED = "WRKFS.escaped"
"""Record of the first entry: names of extended attributes are escaped. Older dumps lack it."""
SPARSE_NAME = "GNU.sparse.name"
"""Pax record with the real name of a sparse file; the entry itself has a substitute name."""
SOCKET = "WRKFS.socket"
"""Record of a socket, which other programs read as an empty file."""
MTIME_MAX = 8**11 - 1
"""Largest mtime, in seconds, that the header of an entry can hold. The pax header has the exact
time."""
TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
    stat.S_IFSOCK: tarfile.REGTYPE,
}


@dataclass(slots=True)
class DumpResult:
    """Number of entries and of file bytes in an archive."""

    entries: int = 0
    bytes: int = 0


async def dump(
    config: VolumeConfig,
    fs: Filesystem,
    out: IO[bytes],
    *,
    copy_progress: Callable[[int, int], None],
    write_progress: Callable[[int, int], None],
) -> DumpResult:
    """Write the archive to `out`. Raises Corrupt, Unavailable, and OSError of `out`.

    Calls `copy_progress(rows, 0)`, and then `write_progress(bytes, total bytes)`.
    """
    with fs.hold(), Spool() as spool:
        async with open_snapshot(config) as snapshot:
            await spool.fill(snapshot, copy_progress)
        spool.index()
        return await archive(config, spool, out, write_progress)


async def archive(
    config: VolumeConfig, spool: Spool, out: IO[bytes], progress: Callable[[int, int], None]
) -> DumpResult:
    """Write the archive of copied rows. The caller holds the snapshot (`Filesystem.hold`)."""
    blocks = S3Blocks(config.store)
    reader = BlockReader(blocks, config.store.prefix, CACHE)
    try:
        return await _Archive(reader, spool, out, progress).write()
    finally:
        await reader.close()
        await blocks.close()


class _Archive:
    """Writes one archive. One task; nothing interleaves."""

    def __init__(
        self,
        reader: BlockReader,
        spool: Spool,
        out: IO[bytes],
        progress: Callable[[int, int], None],
    ) -> None:
        self._reader = reader
        self._spool = spool
        self._out = out
        self._progress = progress
        self._total = spool.size
        self._linked: dict[Ino, str] = {}
        self._buffer: list[BytesLike] = []
        self._buffered = 0
        self._result = DumpResult()

    async def write(self) -> DumpResult:
        """Write the whole archive."""
        root = None
        for path, attr in self._spool.walk():
            if root is None:
                root = attr
            await self._entry(path, attr)
        if root is not None:
            await self._put(encode_header(self._header(b"", root, COMPLETE)))
        await self._put(bytes(2 * BLOCK))
        await self._flush()
        return self._result

    async def _entry(self, path: bytes, attr: Attr) -> None:
        header = self._header(path, attr, "" if path else BEGINS)
        self._result.entries += 1
        first = self._linked.get(attr.ino)
        if first is not None:
            header.type, header.linkname = tarfile.LNKTYPE, first
        elif attr.nlink > 1 and not attr.is_dir:
            self._linked[attr.ino] = header.name
        if attr.is_file and first is None:
            await self._file(header, attr)
        else:
            await self._put(encode_header(header))

    def _header(self, path: bytes, attr: Attr, comment: str) -> tarfile.TarInfo:
        header = tarfile.TarInfo("./" + os.fsdecode(path))
        header.type = TYPES[stat.S_IFMT(attr.mode)]
        header.mode = stat.S_IMODE(attr.mode)
        header.uid, header.gid = attr.uid, attr.gid
        header.mtime = min(max(0, attr.mtime_ns // 10**9), MTIME_MAX)
        header.pax_headers = {
            "mtime": decimal(attr.mtime_ns),
            "atime": decimal(attr.atime_ns),
            "ctime": decimal(attr.ctime_ns),
        }
        if comment:
            header.pax_headers["comment"] = comment
        if comment == BEGINS:
            header.pax_headers[ESCAPED] = "1"
        if stat.S_ISSOCK(attr.mode):
            header.pax_headers[SOCKET] = "1"
        if attr.is_symlink:
            header.linkname = os.fsdecode(self._spool.target(attr.ino))
        if stat.S_ISCHR(attr.mode) or stat.S_ISBLK(attr.mode):
            header.devmajor, header.devminor = os.major(attr.rdev), os.minor(attr.rdev)
        for name, value in self._spool.xattrs(attr.ino):
            header.pax_headers[XATTR + escape(os.fsdecode(name))] = os.fsdecode(value)
        return header

    async def _file(self, header: tarfile.TarInfo, attr: Attr) -> None:
        layout = FileLayout(self._spool.file_map(attr))
        parts = _data_ranges(layout)
        size = sum(end - start for start, end in parts)
        header.size = size
        if size < attr.size:
            if not parts or parts[-1][1] < attr.size:
                parts.append((attr.size, attr.size))
            numbers = [len(parts), *(n for start, end in parts for n in (start, end - start))]
            table = b"".join(b"%d\n" % number for number in numbers)
            table += bytes(-len(table) % BLOCK)
            directory, _, name = header.name.rpartition("/")
            header.pax_headers = {
                **header.pax_headers,
                "GNU.sparse.major": "1",
                "GNU.sparse.minor": "0",
                SPARSE_NAME: header.name,
                "GNU.sparse.realsize": str(attr.size),
            }
            header.name = f"{directory}/GNUSparseFile.0/{name}"
            header.size += len(table)
            await self._put(encode_header(header))
            await self._put(table)
        else:
            await self._put(encode_header(header))
        for start, end in parts:
            for at in range(start, end, PIECE):
                piece = min(at + PIECE, end)
                await self._put(await self._reader.read(layout, at, piece, AHEAD))
        await self._put(bytes(-size % BLOCK))
        self._result.bytes += attr.size
        self._progress(self._result.bytes, self._total)

    async def _put(self, data: BytesLike) -> None:
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered >= PIECE:
            await self._flush()

    async def _flush(self) -> None:
        """Write the buffer in a thread: a slow reader of a pipe must not delay the heartbeat."""
        pieces, self._buffer, self._buffered = self._buffer, [], 0
        await asyncio.to_thread(self._out.write, b"".join(pieces))


def encode_header(header: tarfile.TarInfo) -> bytes:
    """Return a ustar header, preceded by a pax header for everything that does not fit into it.

    tarfile's own pax headers do not support extended attributes whose names are not UTF-8.
    """
    records = {os.fsencode(key): os.fsencode(value) for key, value in header.pax_headers.items()}
    plain = copy.copy(header)
    for field, key, longest in (("name", b"path", 100), ("linkname", b"linkpath", 100)):
        value = os.fsencode(getattr(header, field))
        if len(value) > longest:
            # First in the header: Python's tarfile uses the last of `path` and `GNU.sparse.name`.
            records = {key: value, **records}
            setattr(plain, field, os.fsdecode(value[:longest]))
    form: Literal[0, 1] = tarfile.USTAR_FORMAT
    if header.size >= 8**11 and b"GNU.sparse.major" in records:
        # Python's tarfile mistakes a pax header's size for the size with holes.
        form = tarfile.GNU_FORMAT
    for field, digits in (("uid", 7), ("gid", 7), ("size", 11)):
        number = getattr(header, field)
        if number >= 8**digits and form == tarfile.USTAR_FORMAT:
            records[field.encode()] = b"%d" % number
            setattr(plain, field, 0)
    if not all(_is_utf8(value) for value in records.values()):
        records = {b"hdrcharset": b"BINARY", **records}
    body = b"".join(_record(key, value) for key, value in records.items())
    extension = tarfile.TarInfo("././@PaxHeader")
    extension.type, extension.size = tarfile.XHDTYPE, len(body)
    padded = body + bytes(-len(body) % BLOCK)
    return _block(extension, tarfile.USTAR_FORMAT) + padded + _block(plain, form)


def _block(header: tarfile.TarInfo, form: Literal[0, 1]) -> bytes:
    return header.tobuf(form, "utf-8", "surrogateescape")


def _record(key: bytes, value: bytes) -> bytes:
    """Return a line of a pax header; it begins with its own length."""
    rest = b" %s=%s\n" % (key, value)
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d%s" % (length, rest)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _data_ranges(layout: FileLayout) -> list[tuple[int, int]]:
    """Return the ranges between holes, in whole blocks, as GNU tar reads sparse files."""
    parts: list[tuple[int, int]] = []
    for segment in layout.between(0, layout.size):
        start = segment.start - segment.start % BLOCK
        end = min(layout.size, segment.end + -segment.end % BLOCK)
        if parts and start <= parts[-1][1]:
            parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
        else:
            parts.append((start, end))
    return parts


def escape(name: str) -> str:
    """Escape the name of an extended attribute for a pax header, as GNU tar does since 1.29.

    A key of a pax header ends at its first `=`.
    """
    return name.replace("%", "%25").replace("=", "%3D")


def unescape(key: str) -> str:
    """Return the name that `escape` received. Other characters after a `%` stay unchanged."""
    return key.replace("%3D", "=").replace("%25", "%")


def decimal(value_ns: int) -> str:
    """Return nanoseconds as seconds, in the decimal form of pax headers."""
    seconds, rest = divmod(abs(value_ns), 10**9)
    return f"{'-' if value_ns < 0 else ''}{seconds}.{rest:09}"


def nanoseconds(text: str) -> int:
    """Parse a decimal number of seconds; return nanoseconds. Raises ValueError."""
    whole, _, rest = text.partition(".")
    value = abs(int(whole)) * 10**9 + int((rest + "0" * 9)[:9])
    return -value if whole.startswith("-") else value
