"""Unpacks an untrusted archive into a directory. `importer` runs this module as a process.

The archive may be hostile, so the process is confined. The process has its own namespaces, without
a network and without a view of the host's processes. It lacks the capabilities to create device
nodes and to mount. Its memory, time and output size are limited. It works inside the new root with
`chroot`, so no name, link or `..` leads out. The process never runs a program of the archive.

The process drops device nodes and all extended attributes, including file capabilities and the
attributes of overlayfs. Set-user-id bits stay, because no program in a box gains privileges.

Standard input is the archive: tar, plain or compressed with gzip, bzip2 or xz. Standard output is
lines of JSON: `{"read": BYTES}` for progress, and at the end a report, or `{"error": TEXT}`.
"""

from __future__ import annotations

import bz2
import encodings.ascii
import encodings.latin_1
import encodings.unicode_escape
import gzip
import json
import lzma
import os
import resource
import stat
import tarfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from tarfile import HeaderError
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from boxd.images import layers
from boxd.names.words import shown

if TYPE_CHECKING:
    import io

STAGE, ROOT = "stage", "root"
"""Subdirectories of the working directory: for the archive, and for the layers of a layered
image."""
MOUNT_POINTS = ("dev", "proc", "run", "sys", "wrk", ".box")
"""Mount points in each box. They must be directories, so that no link redirects a mount."""
TEMPORARY = "tmp"
SYSTEM = ("bin", "etc", "lib", "sbin", "usr")
"""A root contains at least one of these."""
LOADED = (encodings.ascii, encodings.latin_1, encodings.unicode_escape)
"""Codecs that must be loaded before `chroot`, because their modules are not in the new root."""
END_MARK = "end of file header"
"""The message of `tarfile` for a block of zeros, which ends an archive."""
_OPEN, _SHARED = 0o755, 0o1777
_REPORT_S = 0.5
"""Seconds between two reports of progress."""
_CHUNK = 1 << 20
_GZIP, _BZIP2, _XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"
COMPRESSED = (_GZIP, _BZIP2, _XZ)
"""First bytes of the supported compression formats."""


class Refused(Exception):
    """The archive is rejected. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of an archive.

    `total_bytes` limits the sum of the apparent file sizes, and also the uncompressed archive.
    """

    entries: int = 1_000_000
    file_bytes: int = 8 << 30
    total_bytes: int = 32 << 30
    memory_bytes: int = 1 << 30
    cpu_s: int = 1200


@dataclass(slots=True)
class Report:
    """The result. `where` is STAGE or ROOT; `notes` are lines for users."""

    where: str = STAGE
    entries: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


class Source(Protocol):
    """A source of bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        ...


class _Tar(tarfile.TarFile):
    """Records the end marker. An archive without it is truncated, or damaged in the middle."""

    ended = False
    members: list[tarfile.TarInfo]


class _Entry(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            if isinstance(tarfile, _Tar) and str(error) == END_MARK:
                tarfile.ended = True
            raise


class _LimitedSource:
    """Reports how much of the standard input was read, and rejects an archive that is too long."""

    def __init__(self, source: Source, limit: int) -> None:
        self._source = source
        self._remaining = limit
        self._reported_at = time.monotonic()

    def read(self, size: int = -1, /) -> bytes:
        """Read from the source. Raises Refused beyond the limit."""
        data = self._source.read(size)
        self._remaining -= len(data)
        if self._remaining < 0:
            raise Refused("the uncompressed archive is larger than an image may be")
        if time.monotonic() - self._reported_at > _REPORT_S:
            self._reported_at = time.monotonic()
            with suppress(OSError):  # a pipe has no position
                answer({"read": os.lseek(0, 0, os.SEEK_CUR)})
        return data


class Unpacker:
    """Applies archives to the root of this process. Limits and counters cover all of them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._skipped: set[str] = set()
        self._written: set[str] | None = None
        self.left_out: Counter[str] = Counter()
        self.entries = 0
        self.bytes = 0

    def archive(self, file: io.BufferedReader, *, layer: bool) -> None:
        """Apply an archive. A `layer` changes what exists, and its marks remove names."""
        stream = _LimitedSource(_decompress(file), 2 * self._bounds.total_bytes)
        self._written = set() if layer else None
        try:
            with _Tar.open(
                fileobj=cast("io.BufferedReader", stream),  # tarfile only calls `read`
                mode="r|",
                bufsize=_CHUNK,
                tarinfo=_Entry,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                while (entry := tar.next()) is not None:
                    tar.members.clear()  # tarfile would keep all of them in memory
                    self._apply(tar, entry)
                if not tar.ended:
                    raise Refused("the archive is truncated or damaged: its end marker is missing")
            while stream.read(_CHUNK):
                pass  # reading to the end checks the checksum of the compressed data
        except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
            raise Refused(f"the archive is damaged: {error}") from None

    def _apply(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        self.entries += 1
        if self.entries > self._bounds.entries:
            raise Refused(f"it has more than {self._bounds.entries} entries")
        path = self._path(entry.name, entry.name)
        try:
            if path == "/":
                return
            if self._written is not None:
                if self._apply_mark(path):
                    return
                self._record_written(self._written, path)
            if not os.path.isdir(os.path.dirname(path)):
                _make_parents(path)
            self._create(tar, entry, path)
        except OSError as error:
            if error.errno is None:
                raise Refused(f"the archive is damaged: {error}") from None
            raise Refused(f"entry {shown(entry.name)}: {error.strerror}") from None
        except (ValueError, OverflowError) as error:
            raise Refused(f"entry {shown(entry.name)}: {error}") from None

    def _create(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
        if entry.isdir():
            if not _is_directory(path):
                remove(path)
                os.mkdir(path, _OPEN)
        elif entry.issym():
            remove(path)
            os.symlink(entry.linkname, path)
        elif entry.islnk():
            self._link(entry, path)
            return
        elif entry.isfifo():
            remove(path)
            os.mkfifo(path, 0o600)
        elif entry.isreg():
            self._file(tar, entry, path)
        else:
            self._skipped.add(path)
            device = entry.ischr() or entry.isblk()
            self.left_out["device nodes" if device else "entries of unknown kind"] += 1
            return
        _set_attributes(entry, path)

    def _file(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
        if not 0 <= entry.size <= self._bounds.file_bytes:
            limit = _size(self._bounds.file_bytes)
            raise Refused(
                f"entry {shown(entry.name)} is larger than the limit of {limit} for files"
            )
        self.bytes += entry.size
        if self.bytes > self._bounds.total_bytes:
            limit = _size(self._bounds.total_bytes)
            raise Refused(f"its files together are larger than {limit}")
        remove(path)
        with open(path, "xb") as file:
            source = tar.extractfile(entry)
            while source is not None and (chunk := source.read(_CHUNK)):
                if chunk.count(0) == len(chunk):
                    file.seek(len(chunk), os.SEEK_CUR)  # zeros become a hole
                else:
                    file.write(chunk)
            file.truncate(entry.size)

    def _link(self, entry: tarfile.TarInfo, path: str) -> None:
        target = self._path(entry.linkname, entry.name)
        if target in self._skipped:
            self._skipped.add(path)
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(target), os.lstat(path)):
                return
        if not os.path.lexists(target):
            raise Refused(
                f"entry {shown(entry.name)} is a link to {shown(entry.linkname)}, "
                "which does not precede it in the archive"
            )
        remove(path)
        os.link(target, path, follow_symlinks=False)

    def _apply_mark(self, path: str) -> bool:
        """Apply a mark that removes names of lower layers; return False for other entries."""
        folder, _, name = path.rpartition("/")
        if not name.startswith(layers.MARK):
            return False
        if name == layers.OPAQUE:
            removals = [f"{folder}/{child}" for child in os.listdir(folder or "/")]
        else:
            removals = [f"{folder}/{name.removeprefix(layers.MARK)}"]
        written = self._written or set()
        while removals:
            target = removals.pop()
            if target not in written:
                remove(target)
            elif _is_directory(target):
                removals += [f"{target}/{child}" for child in os.listdir(target)]
        return True

    def _record_written(self, written: set[str], path: str) -> None:
        while path and path not in written:
            written.add(path)
            path = path.rpartition("/")[0]

    def _path(self, name: str, entry: str) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Refused(f"entry {shown(entry)} leads out of the root by '..'")
        return "/" + "/".join(parts)


def _set_attributes(entry: tarfile.TarInfo, path: str) -> None:
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if not entry.issym():
        os.chmod(path, stat.S_IMODE(entry.mode))
    if not entry.isdir():
        with suppress(OSError, OverflowError, ValueError):  # an invalid time is not important
            os.utime(path, (entry.mtime, entry.mtime), follow_symlinks=False)


def _make_parents(path: str) -> None:
    parts = path.split("/")[1:-1]
    for count in range(1, len(parts) + 1):
        with suppress(FileExistsError):
            os.mkdir("/" + "/".join(parts[:count]), _OPEN)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def remove(path: str) -> None:
    """Remove a file, or a tree of any depth, if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        _remove_directory(path)


def _remove_directory(path: str) -> None:
    # Walks the tree by descriptors, because a tree can be deeper than the longest path.
    current = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    names: list[str] = []
    while True:
        child = _first_directory(current)
        if child is not None:
            names.append(child)
            following = os.open(child, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        elif names:
            following = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=current)
            os.rmdir(names.pop(), dir_fd=following)
        else:
            os.close(current)
            os.rmdir(path)
            return
        os.close(current)
        current = following


def _first_directory(descriptor: int) -> str | None:
    """Remove files of a directory until a subdirectory is found; return its name, or None."""
    for name in os.listdir(descriptor):
        try:
            os.unlink(name, dir_fd=descriptor)
        except IsADirectoryError:
            return name
    return None


def _decompress(file: io.BufferedReader) -> Source:
    head = file.peek(8)[:8]
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(_BZIP2):
        return bz2.BZ2File(file)
    if head.startswith(_XZ):
        return lzma.LZMAFile(file)
    if head.startswith(ZSTD):
        raise Refused("a layer is compressed with zstd; export the image with gzip")
    return file


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def answer(line: dict[str, Any]) -> None:
    """Write a line for the parent process."""
    print(json.dumps(line), flush=True)


def prepare_root() -> list[str]:
    """Create the mount points of boxes in the root of this process; return notes of changes."""
    if not any(_is_directory(f"/{name}") or os.path.islink(f"/{name}") for name in SYSTEM):
        raise Refused(
            f"it is not the root of a system: none of {', '.join(SYSTEM)} is in its top directory"
        )
    notes = []
    for name in MOUNT_POINTS:
        path = f"/{name}"
        if os.path.lexists(path) and not _is_directory(path):
            kind = "link" if os.path.islink(path) else "file"
            notes.append(f"{path} was a {kind}: it is an empty directory now")
            remove(path)
        with suppress(FileExistsError):
            os.mkdir(path, _OPEN)
    temporary = f"/{TEMPORARY}"
    if not os.path.lexists(temporary):
        os.mkdir(temporary)
        os.chmod(temporary, _SHARED)
    os.chmod("/", _OPEN)
    return notes


def unpack(work: str, bounds: Bounds) -> Report:
    """Unpack the archive in the directory `work`, which contains STAGE and ROOT."""
    stage, root = (
        os.open(f"{work}/{name}", os.O_RDONLY | os.O_DIRECTORY) for name in (STAGE, ROOT)
    )
    unpacker, report = Unpacker(bounds), Report()
    _enter(stage)
    with open(0, "rb", closefd=False) as archive:
        unpacker.archive(archive, layer=False)
    image = layers.find()
    if image is not None:
        report.where = ROOT
        report.notes.append(f"{len(image.files)} layers of {image.kind}")
        unpacker.entries = unpacker.bytes = 0
        _enter(root)
        for file in image.files:
            with file:
                unpacker.archive(file, layer=True)
    report.notes += [f"{count} {kind} left out" for kind, count in unpacker.left_out.items()]
    report.notes += prepare_root()
    report.entries, report.bytes = unpacker.entries, unpacker.bytes
    return report


def _enter(directory: int) -> None:
    os.fchdir(directory)
    os.chroot(".")


def _limit(bounds: Bounds) -> None:
    for kind, value in (
        (resource.RLIMIT_AS, bounds.memory_bytes),
        (resource.RLIMIT_CPU, bounds.cpu_s),
        (resource.RLIMIT_FSIZE, bounds.file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def main(work: str, request: str) -> None:
    """Unpack the standard input in the directory `work`. `request` contains the bounds as JSON."""
    bounds = Bounds(**json.loads(request))
    _limit(bounds)
    try:
        report = unpack(work, bounds)
    except (Refused, layers.Unreadable) as error:
        answer({"error": str(error)})
    except MemoryError:
        answer({"error": f"unpacking it needs more than {_size(bounds.memory_bytes)} of memory"})
    except Exception as error:
        answer({"error": f"the archive is damaged: {type(error).__name__}: {error}"})
    else:
        answer(asdict(report))
