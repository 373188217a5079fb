"""Holes, allocation and server-side copies on a real mount, compared with a local file system."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pyfuse3
import pytest

from tests.harness.mounts.fallocate import COLLAPSE, INSERT, KEEP_SIZE, PUNCH, ZERO, fallocate
from tests.mount.errnos import errno_of
from wrkfs.layout import CHUNK_SIZE, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not hasattr(pyfuse3, "Interrupt"), reason="pyfuse3 from PyPI does not pass these requests"
)


@pytest.fixture(scope="module")
def drive(mounted_twice: tuple[Path, Path]) -> Path:
    """A drive mounted once for the tests of this file; each works in files of its own."""
    return mounted_twice[0]


@pytest.fixture(scope="module")
def second(mounted_twice: tuple[Path, Path]) -> Path:
    """Another mount of the same drive."""
    return mounted_twice[1]


def extents(descriptor: int) -> list[tuple[int, int]]:
    """The data of a file as (start, end), by SEEK_DATA and SEEK_HOLE."""
    found: list[tuple[int, int]] = []
    at = 0
    while True:
        if errno_of(os.lseek, descriptor, at, os.SEEK_DATA) == errno.ENXIO:
            return found
        start = os.lseek(descriptor, at, os.SEEK_DATA)
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        found.append((start, at))


def test_data_and_holes(drive: Path) -> None:
    with (drive / "holes").open("w+b", buffering=0) as file:
        fd = file.fileno()
        assert extents(fd) == []
        assert errno_of(os.lseek, fd, 0, os.SEEK_HOLE) == errno.ENXIO
        os.pwrite(fd, b"a" * 10, 100)
        os.pwrite(fd, b"b" * MIB, CHUNK_SIZE - 5)
        os.ftruncate(fd, 2 * CHUNK_SIZE)
        assert extents(fd) == [(100, 110), (CHUNK_SIZE - 5, CHUNK_SIZE - 5 + MIB)]
        assert os.lseek(fd, 105, os.SEEK_DATA) == 105
        assert os.lseek(fd, 110, os.SEEK_HOLE) == 110
        assert os.lseek(fd, 2 * CHUNK_SIZE - 1, os.SEEK_HOLE) == 2 * CHUNK_SIZE - 1
        assert errno_of(os.lseek, fd, 2 * CHUNK_SIZE, os.SEEK_HOLE) == errno.ENXIO
        assert errno_of(os.lseek, fd, CHUNK_SIZE + MIB, os.SEEK_DATA) == errno.ENXIO


def test_punched_holes_use_nothing(drive: Path, second: Path) -> None:
    path = drive / "punched"
    path.write_bytes(b"x" * MIB)
    with path.open("r+b", buffering=0) as file:
        fallocate(file.fileno(), PUNCH | KEEP_SIZE, 100, MIB - 200)
        assert os.pread(file.fileno(), 300, 0) == b"x" * 100 + bytes(200)
        assert extents(file.fileno()) == [(0, 100), (MIB - 100, MIB)]
    assert (second / "punched").read_bytes() == b"x" * 100 + bytes(MIB - 200) + b"x" * 100
    assert os.stat(second / "punched").st_blocks == 1


def test_what_fallocate_does_with_the_size(drive: Path) -> None:
    with (drive / "allocated").open("w+b", buffering=0) as file:
        fd = file.fileno()
        os.write(fd, b"data")
        fallocate(fd, KEEP_SIZE, 0, 1000)
        assert os.fstat(fd).st_size == 4
        fallocate(fd, 0, 10, 90)
        assert os.fstat(fd).st_size == 100
        fallocate(fd, ZERO | KEEP_SIZE, 2, 1000)
        assert os.fstat(fd).st_size == 100
        fallocate(fd, ZERO, 2, 198)
        assert os.fstat(fd).st_size == 200
        assert os.pread(fd, 300, 0) == b"da" + bytes(198)
        assert errno_of(fallocate, fd, COLLAPSE, 0, 4096) == errno.EOPNOTSUPP
        assert errno_of(fallocate, fd, INSERT, 0, 4096) == errno.EOPNOTSUPP
        assert errno_of(fallocate, fd, PUNCH, 0, 4096) == errno.EOPNOTSUPP
        os.posix_fallocate(fd, 0, 1000)
        assert os.fstat(fd).st_size == 1000


def test_a_copy_shares_its_bytes(drive: Path, second: Path) -> None:
    content = random.Random(1).randbytes(9 * MIB)
    (drive / "source").write_bytes(content)
    used = _used(drive)
    subprocess.run(["cp", str(drive / "source"), str(drive / "copy")], check=True)
    assert _used(drive) == used
    assert (second / "copy").read_bytes() == content
    (drive / "source").write_bytes(b"other bytes")
    assert (second / "copy").read_bytes() == content
    (drive / "source").unlink()
    assert (drive / "copy").read_bytes() == content


def test_a_copy_takes_what_was_just_written(drive: Path) -> None:
    with (
        (drive / "fresh").open("w+b", buffering=0) as source,
        (drive / "fresh copy").open("w+b", buffering=0) as target,
    ):
        for number in range(20):
            os.write(source.fileno(), b"%d," % number)
            os.write(target.fileno(), b"to be replaced")
            size = os.fstat(source.fileno()).st_size
            assert os.copy_file_range(source.fileno(), target.fileno(), 1 << 20, 0, 0) == size
            assert os.pread(target.fileno(), size, 0) == os.pread(source.fileno(), size, 0)


def _used(drive: Path) -> int:
    usage = os.statvfs(drive)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_agree_with_a_local_file(drive: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    pairs = []
    for name in ("a", "b"):
        flags = os.O_RDWR | os.O_CREAT
        here = os.open(drive / f"random {seed} {name}", flags)
        there = os.open(tmp_path / name, flags)
        pairs.append((here, there))
    try:
        for _ in range(120):
            _random_call(chance, pairs)
            here, there = chance.choice(pairs)
            size = os.fstat(there).st_size
            assert os.fstat(here).st_size == size
            content = os.pread(there, size, 0)
            assert os.pread(here, size, 0) == content
            at = 0
            for start, end in [*extents(here), (size, size)]:
                assert not any(content[at:start])
                at = end
    finally:
        for pair in pairs:
            for descriptor in pair:
                os.close(descriptor)


def _random_call(chance: random.Random, pairs: list[tuple[int, int]]) -> None:
    number, other = chance.randrange(2), chance.randrange(2)
    pos, size = chance.randrange(200 * KIB), chance.randrange(1, 90 * KIB)
    action = chance.choice(("write", "write", "punch", "zero", "allocate", "copy", "copy", "cut"))
    start = chance.randrange(200 * KIB)
    data = chance.randbytes(size)
    results = []
    for side in (0, 1):
        descriptor, origin = pairs[number][side], pairs[other][side]
        mode = KEEP_SIZE if start % 2 else 0
        calls: dict[str, Callable[[], object]] = {
            "write": partial(os.pwrite, descriptor, data, pos),
            "punch": partial(fallocate, descriptor, PUNCH | KEEP_SIZE, pos, size),
            "zero": partial(_zero, descriptor, ZERO | mode, pos, size),
            "allocate": partial(fallocate, descriptor, mode, pos, size),
            "cut": partial(os.ftruncate, descriptor, pos),
            "copy": partial(os.copy_file_range, origin, descriptor, size, start, pos),
        }
        try:
            results.append(calls[action]())
        except OSError as error:
            results.append(error.errno)
    assert results[0] == results[1], (action, pos, size, start)


def _zero(descriptor: int, mode: int, pos: int, size: int) -> None:
    """FALLOC_FL_ZERO_RANGE, also on a local file system without it."""
    try:
        fallocate(descriptor, mode, pos, size)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        old = os.fstat(descriptor).st_size
        end = pos + size if not mode & KEEP_SIZE else min(pos + size, old)
        if pos < end:
            os.pwrite(descriptor, bytes(end - pos), pos)


def name_it(descriptor: int, path: Path) -> None:
    """Give an open file a name: linkat(2) with AT_SYMLINK_FOLLOW, which needs a descriptor."""
    directory = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        os.link(str(descriptor), path, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def test_files_without_a_name(drive: Path, second: Path) -> None:
    directory = drive / "nameless"
    directory.mkdir()
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o640)
    try:
        os.write(fd, b"content")
        assert os.fstat(fd).st_nlink == 0
        assert list(directory.iterdir()) == []
        name_it(fd, directory / "named")
        assert (second / "nameless" / "named").read_bytes() == b"content"
        name_it(fd, directory / "again")
        assert os.fstat(fd).st_nlink == 2
        assert errno_of(name_it, fd, directory / "again") == errno.EEXIST
    finally:
        os.close(fd)
    fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_EXCL, 0o600)
    assert errno_of(name_it, fd, directory / "never") == errno.ENOENT
    os.close(fd)
    assert sorted(path.name for path in directory.iterdir()) == ["again", "named"]
