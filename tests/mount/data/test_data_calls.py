"""Calls on the bytes of files: what Linux answers, and what programs fall back on."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.mount.errnos import errno_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = (1 << 63) - 1
"""Largest offset that a Linux file can have."""
RWF_APPEND = 0x10
FICLONE, FS_IOC_GETFLAGS = 0x40049409, 0x80086601
SIZE = 150_000
"""Above what stands in the database, below one block."""

libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def drive(mounted_twice: tuple[Path, Path]) -> Path:
    """A drive mounted once for the tests of this file; each works in files of its own."""
    return mounted_twice[0]


@pytest.fixture
def file(drive: Path, request: pytest.FixtureRequest) -> Path:
    """Name of a file of this test."""
    return drive / f"{request.node.name[:60].replace('/', '_')}"


@pytest.fixture
def opened(file: Path) -> Iterator[int]:
    """A descriptor of a file of `SIZE` bytes, for reading and writing."""
    file.write_bytes(pattern(SIZE))
    descriptor = os.open(file, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def pattern(size: int, start: int = 0) -> bytes:
    """Bytes that differ from page to page."""
    return b"".join(b"%015d\n" % number for number in range(start, start + size // 16 + 1))[:size]


# -- the ends of files --


def test_the_last_byte_that_a_file_can_have(file: Path) -> None:
    with file.open("w+b", buffering=0) as opened:
        fd = opened.fileno()
        assert os.pwrite(fd, b"z", LIMIT - 1) == 1
        assert os.fstat(fd).st_size == LIMIT
        assert os.pread(fd, 1, LIMIT - 1) == b"z"
        assert os.pread(fd, 10, LIMIT - 10) == bytes(9) + b"z"
        assert errno_of(os.pwrite, fd, b"zz", LIMIT - 1) == errno.EINVAL
        assert errno_of(os.pread, fd, 1, LIMIT) == errno.EINVAL
        assert errno_of(os.lseek, fd, LIMIT, os.SEEK_SET) == 0
        assert errno_of(os.write, fd, b"z") in (errno.EFBIG, errno.EINVAL)
        os.ftruncate(fd, 0)


def test_negative_offsets_and_sizes(opened: int) -> None:
    assert errno_of(os.pread, opened, 5, -1) == errno.EINVAL
    assert errno_of(os.pwrite, opened, b"x", -1) == errno.EINVAL
    assert errno_of(os.ftruncate, opened, -1) == errno.EINVAL
    assert errno_of(os.lseek, opened, -1, os.SEEK_SET) == errno.EINVAL


def test_reads_behind_the_end(opened: int) -> None:
    assert os.pread(opened, 10, SIZE - 4) == pattern(SIZE)[-4:]
    assert os.pread(opened, 10, SIZE) == b""
    assert os.pread(opened, 10, 1 << 40) == b""
    os.lseek(opened, 0, os.SEEK_END)
    assert os.read(opened, 10) == b""


def test_the_access_mode_is_kept(file: Path) -> None:
    file.write_bytes(b"x")
    for flags, verb in ((os.O_RDONLY, os.write), (os.O_PATH, os.write)):
        descriptor = os.open(file, flags)
        assert errno_of(verb, descriptor, b"y") == errno.EBADF
        os.close(descriptor)
    descriptor = os.open(file, os.O_RDONLY)
    assert errno_of(os.ftruncate, descriptor, 0) == errno.EINVAL
    os.close(descriptor)
    descriptor = os.open(file, os.O_WRONLY)
    assert errno_of(os.read, descriptor, 1) == errno.EBADF
    os.close(descriptor)


# -- holes --


def test_holes_take_no_room_and_read_as_zeros(file: Path) -> None:
    with file.open("w+b", buffering=0) as opened:
        fd = opened.fileno()
        os.pwrite(fd, b"a" * 5000, 5 << 30)
        os.fsync(fd)
        found = os.fstat(fd)
        assert (found.st_size, found.st_blocks) == ((5 << 30) + 5000, -(-5000 // 512))
        assert os.pread(fd, 4096, (5 << 30) - 4000) == bytes(4000) + b"a" * 96
        os.ftruncate(fd, 6 << 30)
        assert os.fstat(fd).st_blocks == -(-5000 // 512)
        os.ftruncate(fd, (5 << 30) + 512)
        assert os.fstat(fd).st_blocks == 1
        os.ftruncate(fd, 4096)
        assert os.fstat(fd).st_blocks == 0
        assert os.pread(fd, 5000, 0) == bytes(4096)
        os.pwrite(fd, b"b" * 1024, 0)
        assert os.fstat(fd).st_blocks == 2, "also before it is committed"
        du = subprocess.run(["du", "-B1", file], capture_output=True, check=True)
        assert du.stdout.split()[0] == b"1024"


def test_cut_bytes_do_not_come_back(opened: int) -> None:
    for size in (4096 * 10, 4096 * 10 + 1, 7, 0):
        os.ftruncate(opened, size)
        os.ftruncate(opened, SIZE)
        kept = min(size, 4096 * 10)
        assert os.pread(opened, SIZE, 0) == pattern(kept) + bytes(SIZE - kept)


# -- what the drive cannot do: the errno that programs know what to do with --


def test_no_clones_no_flags(opened: int) -> None:
    assert errno_of(fcntl.ioctl, opened, FICLONE, opened) == errno.EOPNOTSUPP
    assert errno_of(fcntl.ioctl, opened, FS_IOC_GETFLAGS, bytes(8)) == errno.ENOTTY
    assert not os.isatty(opened)


def test_copies_within_the_kernel(opened: int, file: Path, tmp_path: Path) -> None:
    with file.with_suffix(".2").open("w+b", buffering=0) as other:
        copied = os.copy_file_range(opened, other.fileno(), SIZE, 0, 10)
        assert os.pread(other.fileno(), SIZE + 99, 0)[: copied + 10] == bytes(10) + pattern(copied)
        other.seek(0)
        other.truncate(0)
        assert os.sendfile(other.fileno(), opened, 7, 100) == 100
        assert os.pread(other.fileno(), 200, 0) == pattern(200)[7:107]
    with (tmp_path / "local").open("w+b", buffering=0) as local:
        refused = errno_of(os.copy_file_range, opened, local.fileno(), SIZE, 0, 0)
        assert refused == errno.EXDEV, "between filesystems programs copy by themselves"
    reader, writer = os.pipe()
    assert os.splice(opened, writer, 50, 3) == 50
    assert os.splice(reader, opened, 50, None, 0) == 50
    assert os.pread(opened, 60, 0) == pattern(53)[3:] + pattern(60)[50:]
    os.close(reader)
    os.close(writer)


# -- flags of descriptors and of single calls --


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC, os.O_DIRECT, os.O_DIRECT | os.O_DSYNC])
def test_flags_of_descriptors(file: Path, flag: int) -> None:
    block = mmap.mmap(-1, 8192)
    block.write(pattern(8192))
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | flag, 0o600)
    try:
        assert os.pwritev(descriptor, [block], 4096) == 8192
        assert file.read_bytes() == bytes(4096) + pattern(8192), "another descriptor sees it"
        with file.open("r+b", buffering=0) as other:
            os.pwrite(other.fileno(), b"other", 5000)
        assert os.preadv(descriptor, [block], 4096) == 8192
        assert block[904:909] == b"other"
        assert block[:904] == pattern(904)
    finally:
        os.close(descriptor)
        block.close()


def test_flags_of_single_calls(opened: int) -> None:
    assert os.pwritev(opened, [b"one", b"two"], 0, os.RWF_DSYNC) == 6
    assert os.pwritev(opened, [b"three"], 0, os.RWF_SYNC) == 5
    assert os.pwritev(opened, [b"end"], 0, RWF_APPEND) == 3
    assert os.fstat(opened).st_size == SIZE + 3
    assert os.pread(opened, 8, 0) == b"threeo" + pattern(8)[6:]
    buffer = bytearray(5)
    assert os.preadv(opened, [buffer], SIZE - 2, os.RWF_HIPRI) == 5
    assert buffer == pattern(SIZE)[-2:] + b"end"
    assert errno_of(os.preadv, opened, [buffer], 0, os.RWF_NOWAIT) in (0, errno.EOPNOTSUPP)
    assert errno_of(os.preadv, opened, [buffer], 0, 1 << 20) == errno.EOPNOTSUPP


def test_an_offset_is_shared_by_duplicates_and_children(opened: int) -> None:
    copy = os.dup(opened)
    os.lseek(opened, 100, os.SEEK_SET)
    os.write(copy, b"12345")
    subprocess.run(["sh", "-c", "printf 678 >&0"], stdin=opened, check=True)
    assert os.lseek(opened, 0, os.SEEK_CUR) == 108
    assert os.pread(copy, 8, 100) == b"12345678"
    os.close(copy)


# -- appending --


def test_pwrite_to_an_append_descriptor_appends(file: Path) -> None:
    file.write_bytes(b"12345")
    with file.open("r+b", buffering=0) as opened:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND)
        assert os.pwrite(descriptor, b"ab", 0) == 2
        os.pwrite(opened.fileno(), b"x" * 5000, 7)
        os.write(descriptor, b"cd")
        assert os.pread(descriptor, 9, 0) == b"12345abxx"
        assert file.read_bytes()[-3:] == b"xcd"
        os.ftruncate(descriptor, 4096)
        os.write(descriptor, b"ef")
        assert file.read_bytes()[4090:] == b"x" * 6 + b"ef"
        os.close(descriptor)


def test_appending_can_be_switched_on_but_not_off(file: Path) -> None:
    file.write_bytes(pattern(10_000))
    descriptor = os.open(file, os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    os.write(descriptor, b"appended")
    os.close(descriptor)
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    os.pwrite(descriptor, b"again", 10)
    os.close(descriptor)
    assert file.read_bytes() == pattern(10_000) + b"appendedagain"
