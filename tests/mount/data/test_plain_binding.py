"""What programs get from a mount whose pyfuse3 passes no requests for ranges: fall-backs."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import fresh_volume
from tests.harness.mounts.fallocate import COLLAPSE, INSERT, KEEP_SIZE, PUNCH, ZERO, fallocate
from tests.harness.mounts.plain_mount import PlainMount
from tests.mount.errnos import errno_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers.objectserver import ObjectServer

CONTENT = b"0123456789" * 15_000
SIZE = len(CONTENT)


@pytest.fixture(scope="module")
def plain_drive(
    drive_database: str, objectserver: ObjectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A drive mounted without the handlers of the patched binding."""
    with fresh_volume(drive_database, objectserver) as volume:
        mount = PlainMount(volume, tmp_path_factory.mktemp("plain"))
        try:
            yield mount.path
        finally:
            mount.clean()


@pytest.fixture
def opened(plain_drive: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor of a file of `SIZE` bytes, for reading and writing."""
    path = plain_drive / request.node.name[:60]
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_seek_data_takes_everything_for_data(opened: int) -> None:
    end = SIZE + 100_000
    os.ftruncate(opened, end)
    assert os.lseek(opened, 5, os.SEEK_DATA) == 5
    assert os.lseek(opened, 5, os.SEEK_HOLE) == end
    assert errno_of(os.lseek, opened, end, os.SEEK_DATA) == errno.ENXIO
    assert errno_of(os.lseek, opened, end, os.SEEK_HOLE) == errno.ENXIO


@pytest.mark.parametrize("mode", [0, KEEP_SIZE, PUNCH | KEEP_SIZE, ZERO, COLLAPSE, INSERT])
def test_fallocate_is_not_supported(opened: int, mode: int) -> None:
    assert errno_of(fallocate, opened, mode, 0, 4096) == errno.EOPNOTSUPP


def test_posix_fallocate_writes_instead(opened: int) -> None:
    os.posix_fallocate(opened, 1000, SIZE)
    assert os.fstat(opened).st_size == SIZE + 1000
    assert os.pread(opened, SIZE + 1000, 0) == CONTENT + bytes(1000)


def test_copies_go_through_the_kernel(plain_drive: Path, opened: int) -> None:
    with (plain_drive / "copy").open("w+b", buffering=0) as other:
        copied = os.copy_file_range(opened, other.fileno(), SIZE, 0, 10)
        assert copied > 0
        assert os.pread(other.fileno(), SIZE + 99, 0)[: copied + 10] == bytes(10) + CONTENT[:copied]


def test_there_are_no_unnamed_files(plain_drive: Path) -> None:
    assert errno_of(os.open, plain_drive, os.O_RDWR | os.O_TMPFILE) == errno.EOPNOTSUPP
