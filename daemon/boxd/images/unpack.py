"""Unpacks one foreign archive into a directory: a process of its own, which `importer` starts.

What is in the archive is hostile. The guard is the process itself: it has namespaces of its own (no
network, nothing to see of the host's processes), few rights (it can make no device node and mount
nothing), bounds on memory, time and size, and it does everything inside the new root with `chroot`:
no name, link or `..` leads out of it. Nothing in the archive is run.

Dropped from what an archive may ask for: device nodes and all extended attributes, among them file
capabilities and what would mean something to overlayfs. Set-user-id bits stay: they mean nothing in
a box, where no program gains rights.

Standard input is the archive: tar, as it is or compressed by gzip, bzip2 or xz. Standard output is
lines of JSON: `{"read": BYTES}` now and then, and at the end a report, or `{"error": TEXT}`.
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
"""What stands in the working directory: where an archive goes, and where its layers go if it is an
image in layers."""
PLACES = ("dev", "proc", "run", "sys", "wrk", ".box")
"""Where something is mounted in each box: no link may send that elsewhere."""
TEMPORARY = "tmp"
SYSTEM = ("bin", "etc", "lib", "sbin", "usr")
"""A root has one of them at least."""
LOADED = (encodings.ascii, encodings.latin_1, encodings.unicode_escape)
"""Codecs that cannot be found any more once the root is another one."""
END_MARK = "end of file header"
"""How `tarfile` calls a block of zeros, which ends an archive."""
_OPEN, _SHARED = 0o755, 0o1777
_TELL_S = 0.5
_CHUNK = 1 << 20
_GZIP, _BZIP2, _XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"
COMPRESSED = (_GZIP, _BZIP2, _XZ)
"""What archives that are read here begin with when they are compressed."""


class Refused(Exception):
    """The archive is not taken; the text says why."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that an archive may ask for. `total_bytes` counts sizes as files show them, and
    what the archive is when it is not compressed."""

    entries: int = 1_000_000
    file_bytes: int = 8 << 30
    total_bytes: int = 32 << 30
    memory_bytes: int = 1 << 30
    cpu_s: int = 1200


@dataclass(slots=True)
class Report:
    """How it went. `where` is STAGE or ROOT; `notes` are lines for people."""

    where: str = STAGE
    entries: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


class _Tar(tarfile.TarFile):
    """Remembers the end mark: without it the archive is cut, or damaged in the middle."""

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


class _Counted:
    """Tells how much of the standard input was read, and ends what is too long."""

    def __init__(self, source: Source, most: int) -> None:
        self._source = source
        self._left = most
        self._told = time.monotonic()

    def read(self, size: int = -1, /) -> bytes:
        """As of the source. Refused beyond the bound."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Refused("the archive is longer than what an image may have")
        if time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            with suppress(OSError):  # a pipe has no position
                answer({"read": os.lseek(0, 0, os.SEEK_CUR)})
        return data


class Unpacker:
    """Applies archives to the root of this process. Counts over all of them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._skipped: set[str] = set()
        self._written: set[str] | None = None
        self.left_out: Counter[str] = Counter()
        self.entries = 0
        self.bytes = 0

    def archive(self, file: io.BufferedReader, *, layer: bool) -> None:
        """Applies one archive. `layer`: over what is there, with marks for what it removes."""
        stream = _Counted(_decompressed(file), 2 * self._bounds.total_bytes)
        self._written = set() if layer else None
        try:
            with _Tar.open(
                fileobj=cast("io.BufferedReader", stream),  # of which it only reads
                mode="r|",
                bufsize=_CHUNK,
                tarinfo=_Entry,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                while (entry := tar.next()) is not None:
                    tar.members.clear()  # it would keep them all
                    self._apply(tar, entry)
                if not tar.ended:
                    raise Refused("the archive is cut, or damaged: its end mark is missing")
            while stream.read(_CHUNK):
                pass  # the sum at the end of the compressed data is checked
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
                if self._is_mark(path):
                    return
                self._note_written(self._written, path)
            if not os.path.isdir(os.path.dirname(path)):
                _make_parents(path)
            self._make(tar, entry, path)
        except OSError as error:
            if error.errno is None:
                raise Refused(f"the archive is damaged: {error}") from None
            raise Refused(f"entry {shown(entry.name)}: {error.strerror}") from None
        except (ValueError, OverflowError) as error:
            raise Refused(f"entry {shown(entry.name)}: {error}") from None

    def _make(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
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
        _own(entry, path)

    def _file(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
        if not 0 <= entry.size <= self._bounds.file_bytes:
            most = _size(self._bounds.file_bytes)
            raise Refused(f"entry {shown(entry.name)} is larger than the {most} a file may have")
        self.bytes += entry.size
        if self.bytes > self._bounds.total_bytes:
            raise Refused(f"its files have more than {_size(self._bounds.total_bytes)}")
        remove(path)
        with open(path, "xb") as file:
            source = tar.extractfile(entry)
            while source is not None and (chunk := source.read(_CHUNK)):
                if chunk.count(0) == len(chunk):
                    file.seek(len(chunk), os.SEEK_CUR)  # a hole stays a hole
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
                "which is not before it in the archive"
            )
        remove(path)
        os.link(target, path, follow_symlinks=False)

    def _is_mark(self, path: str) -> bool:
        """Whether the entry of a layer only tells what of the layers below it is gone."""
        folder, _, name = path.rpartition("/")
        if not name.startswith(layers.MARK):
            return False
        if name == layers.OPAQUE:
            gone = [f"{folder}/{one}" for one in os.listdir(folder or "/")]
        else:
            gone = [f"{folder}/{name.removeprefix(layers.MARK)}"]
        written = self._written or set()
        while gone:
            victim = gone.pop()
            if victim not in written:
                remove(victim)
            elif _is_directory(victim):
                gone += [f"{victim}/{one}" for one in os.listdir(victim)]
        return True

    def _note_written(self, written: set[str], path: str) -> None:
        while path and path not in written:
            written.add(path)
            path = path.rpartition("/")[0]

    def _path(self, name: str, entry: str) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Refused(f"entry {shown(entry)} leads out of the root by '..'")
        return "/" + "/".join(parts)


def _own(entry: tarfile.TarInfo, path: str) -> None:
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if not entry.issym():
        os.chmod(path, stat.S_IMODE(entry.mode))
    if not entry.isdir():
        with suppress(OSError, OverflowError, ValueError):  # any time will do
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
    """Removes whatever is there, trees of any depth included."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except IsADirectoryError:
        _remove_directory(path)


def _remove_directory(path: str) -> None:
    """One directory after the other by its descriptor: a tree can be deeper than a path is long."""
    here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    names: list[str] = []
    while True:
        inside = _first_directory(here)
        if inside is not None:
            names.append(inside)
            there = os.open(inside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
        elif names:
            there = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.rmdir(names.pop(), dir_fd=there)
        else:
            os.close(here)
            os.rmdir(path)
            return
        os.close(here)
        here = there


def _first_directory(descriptor: int) -> str | None:
    """Removes the files of a directory until there is a directory in it; None: it is empty."""
    for name in os.listdir(descriptor):
        try:
            os.unlink(name, dir_fd=descriptor)
        except IsADirectoryError:
            return name
    return None


def _decompressed(file: io.BufferedReader) -> Source:
    head = file.peek(8)[:8]
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(_BZIP2):
        return bz2.BZ2File(file)
    if head.startswith(_XZ):
        return lzma.LZMAFile(file)
    if head.startswith(ZSTD):
        raise Refused("a layer is compressed by zstd; export the image with gzip")
    return file


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def answer(line: dict[str, Any]) -> None:
    """One line for who started this process."""
    print(json.dumps(line), flush=True)


def furnish() -> list[str]:
    """Makes the root of this process one that a box can start from; notes what was not right."""
    if not any(_is_directory(f"/{name}") or os.path.islink(f"/{name}") for name in SYSTEM):
        raise Refused(
            f"it does not hold the root of a system: none of {', '.join(SYSTEM)} is at its top"
        )
    notes = []
    for name in PLACES:
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
    """The whole work, in the directory `work`, which holds STAGE and ROOT."""
    stage, root = (
        os.open(f"{work}/{name}", os.O_RDONLY | os.O_DIRECTORY) for name in (STAGE, ROOT)
    )
    unpacker, report = Unpacker(bounds), Report()
    _enter(stage)
    with open(0, "rb", closefd=False) as archive:
        unpacker.archive(archive, layer=False)
    found = layers.find()
    if found is not None:
        report.where = ROOT
        report.notes.append(f"{len(found.files)} layers of {found.kind}")
        unpacker.entries = unpacker.bytes = 0
        _enter(root)
        for file in found.files:
            with file:
                unpacker.archive(file, layer=True)
    report.notes += [f"{count} {what} left out" for what, count in unpacker.left_out.items()]
    report.notes += furnish()
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
    """Unpacks the standard input in the directory `work`; `request` is the bounds as JSON."""
    bounds = Bounds(**json.loads(request))
    _limit(bounds)
    try:
        report = unpack(work, bounds)
    except (Refused, layers.Unreadable) as error:
        answer({"error": str(error)})
    except MemoryError:
        answer({"error": f"unpacking it takes more than {_size(bounds.memory_bytes)} of memory"})
    except Exception as error:
        answer({"error": f"the archive is damaged: {type(error).__name__}: {error}"})
    else:
        answer(asdict(report))
