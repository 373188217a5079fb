"""What is measured on a mounted drive: each work gives a rate, so that higher is better.

Metadata works give operations a second, sequential ones MiB a second. `cold` means after a
remount: neither the kernel nor the peer has anything cached. Each work leaves the tree as the
next one needs it, so they run in the order of `WORKS`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.peers import remount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from benchmarks.peers import Peer

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each work is done: files of the metadata works, MiB of the sequential ones."""

    files: int
    mib: int
    fsyncs: int


FULL = Size(files=500, mib=512, fsyncs=100)
QUICK = Size(files=150, mib=128, fsyncs=30)


@dataclass(frozen=True, slots=True)
class Run:
    """One peer in one repetition: its empty directory, and where a tree to unpack lies."""

    peer: Peer
    directory: Path
    size: Size
    archive: Path

    def names(self, stem: str) -> list[str]:
        """Paths of the files of one work."""
        return [str(self.directory / f"{stem}{n}") for n in range(self.size.files)]


def rate(count: float, work: Callable[[], None]) -> float:
    """Units a second."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def _each(paths: Iterable[str], act: Callable[[str], object]) -> Callable[[], None]:
    def work() -> None:
        for path in paths:
            act(path)

    return work


def _create(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _write_4k(path: str) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    os.write(descriptor, b"d" * 4096)
    os.close(descriptor)


def _read_4k(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    assert len(os.read(descriptor, 8192)) == 4096
    os.close(descriptor)


def create(run: Run) -> float:
    """Empty files."""
    return rate(run.size.files, _each(run.names("empty"), _create))


def create_write_4k(run: Run) -> float:
    """Create, write 4 KiB, close."""
    return rate(run.size.files, _each(run.names("small"), _write_4k))


def stat_cold(run: Run) -> float:
    """Stat of files that nobody has looked at since the remount."""
    remount(run.peer)
    return rate(run.size.files, _each(run.names("small"), os.stat))


def stat_warm(run: Run) -> float:
    """The same again."""
    return rate(run.size.files, _each(run.names("small"), os.stat))


def open_read_4k_cold(run: Run) -> float:
    """Open and read whole small files after a remount."""
    remount(run.peer)
    return rate(run.size.files, _each(run.names("small"), _read_4k))


def open_read_4k_warm(run: Run) -> float:
    """The same again."""
    return rate(run.size.files, _each(run.names("small"), _read_4k))


def rename(run: Run) -> float:
    """Within one directory, to names that do not exist."""
    return rate(
        run.size.files, _each(run.names("empty"), lambda path: os.rename(path, path + ".new"))
    )


def readdir_1000(run: Run) -> float:
    """Entries a second with attributes, of a directory of about a thousand, cold."""
    remount(run.peer)
    count = len(os.listdir(run.directory))

    def work() -> None:
        with os.scandir(run.directory) as entries:
            for entry in entries:
                entry.stat()

    remount(run.peer)
    return rate(count, work)


def unlink(run: Run) -> float:
    """Small files."""
    return rate(run.size.files, _each(run.names("small"), os.unlink))


def mkdir(run: Run) -> float:
    """Directories."""
    return rate(run.size.files, _each(run.names("folder"), os.mkdir))


def rmdir(run: Run) -> float:
    """The same directories."""
    return rate(run.size.files, _each(run.names("folder"), os.rmdir))


def untar(run: Run) -> float:
    """Files a second of a source-like tree, by tar."""
    command = ["tar", "xf", str(run.archive), "-C", str(run.directory)]
    return rate(run.size.files, lambda: _run(command))


def rm_rf(run: Run) -> float:
    """Files a second, the same tree."""
    return rate(run.size.files, lambda: _run(["rm", "-rf", str(run.directory / "tree")]))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def seq_write_fsync(run: Run) -> float:
    """One file in writes of 1 MiB, then fsync."""
    block = os.urandom(MIB)

    def work() -> None:
        with (run.directory / "large").open("wb", buffering=0) as file:
            for _ in range(run.size.mib):
                file.write(block)
            os.fsync(file.fileno())

    return rate(run.size.mib, work)


def seq_read_cold(run: Run) -> float:
    """The same file in reads of 1 MiB after a remount."""
    remount(run.peer)
    return seq_read_warm(run)


def seq_read_warm(run: Run) -> float:
    """The same again."""

    def work() -> None:
        left = run.size.mib * MIB
        with (run.directory / "large").open("rb", buffering=0) as file:
            while data := file.read(MIB):
                left -= len(data)
        assert left == 0

    return rate(run.size.mib, work)


def rand_write_fsync_4k(run: Run) -> float:
    """4 KiB at random places of that file, each followed by fsync, as a database does."""
    places = random.Random(1)
    block = os.urandom(4096)

    def work() -> None:
        with (run.directory / "large").open("r+b", buffering=0) as file:
            for _ in range(run.size.fsyncs):
                place = places.randrange(run.size.mib * MIB // 4096) * 4096
                os.pwrite(file.fileno(), block, place)
                os.fsync(file.fileno())

    return rate(run.size.fsyncs, work)


def clean(run: Run) -> None:
    """Empties the directory."""
    shutil.rmtree(run.directory)


WORKS: tuple[Callable[[Run], float], ...] = (
    create,
    create_write_4k,
    stat_cold,
    stat_warm,
    open_read_4k_cold,
    open_read_4k_warm,
    readdir_1000,
    rename,
    unlink,
    mkdir,
    rmdir,
    untar,
    rm_rf,
    seq_write_fsync,
    seq_read_cold,
    seq_read_warm,
    rand_write_fsync_4k,
)
