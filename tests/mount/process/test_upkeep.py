"""Upkeep that mount processes do by themselves: garbage, trash, files in many pieces."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import MountProcess, keep_trash, send_changes, until
from tests.harness.volumes.fsck import fsck_clean
from tests.harness.volumes.leaks import EMPTY, ENDED, listed, missing_objects, rows, stray_objects
from wrkfs.layout import FRAGMENTED, INLINE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wrkfs.config import VolumeConfig

PACE = ("--upkeep", "0.3", "--grace", "1")
PATIENCE = 60.0
"""Seconds for what takes a few rounds and the heartbeats of all sessions."""
STORED = INLINE_MAX + 1


@pytest.fixture
def kept(
    volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], MountProcess]]:
    """Makes mounts of `volume` that look after it every moment."""
    mounts: list[MountProcess] = []

    def make() -> MountProcess:
        mounts.append(MountProcess(volume, tmp_path_factory.mktemp("kept"), *PACE))
        return mounts[-1]

    try:
        yield make
    finally:
        for made in mounts:
            made.clean()


def refs(volume: VolumeConfig) -> int:
    """Number of refs of all files."""
    return rows(volume)["slice"]


@pytest.mark.timeout(150)
def test_objects_of_removed_and_replaced_bytes_vanish_by_themselves(
    kept: Callable[[], MountProcess], volume: VolumeConfig, drive_database: str
) -> None:
    keep_trash(drive_database, volume, 0)
    mount = kept()
    path = mount.path
    (path / "d").mkdir()
    for name in ("removed", "replaced", "cut", "d/inside"):
        (path / name).write_bytes(name.encode() * STORED)
    (path / "kept").write_bytes(b"kept" * STORED)
    before = listed(volume.store)
    assert len(before) >= 5
    (path / "removed").unlink()
    (path / "replaced").write_bytes(b"again" * STORED)
    os.truncate(path / "cut", 0)
    shutil.rmtree(path / "d")
    until(lambda: len(listed(volume.store)) == 2, PATIENCE)
    until(lambda: rows(volume)["deleted"] == 0, PATIENCE)
    assert not missing_objects(volume)
    assert not stray_objects(volume)
    fsck_clean(volume)
    assert (path / "kept").read_bytes() == b"kept" * STORED
    assert (path / "replaced").read_bytes() == b"again" * STORED
    assert mount.log.read_text() == ""


@pytest.mark.timeout(150)
def test_trash_is_freed_after_its_time(
    kept: Callable[[], MountProcess], volume: VolumeConfig, drive_database: str
) -> None:
    mount = kept()
    path = mount.path
    (path / "d").mkdir()
    (path / "d/stored").write_bytes(b"x" * STORED)
    (path / "inline").write_bytes(b"y" * 100)
    send_changes(path)
    shutil.rmtree(path / "d")
    (path / "inline").unlink()
    # Rounds of upkeep come and go, and a day is not over.
    (path / "other").write_bytes(b"z" * STORED)
    os.truncate(path / "other", 0)
    until(lambda: len(listed(volume.store)) == 1, PATIENCE)
    assert rows(volume)["trash"] == 3
    keep_trash(drive_database, volume, 1)
    until(lambda: not listed(volume.store), PATIENCE)
    (path / "other").unlink()
    until(lambda: rows(volume) == EMPTY, PATIENCE)
    fsck_clean(volume)
    assert mount.stop() == 0
    assert rows(volume, ENDED) == ENDED
    assert mount.log.read_text() == ""


@pytest.mark.timeout(150)
def test_a_file_in_many_pieces_is_compacted_while_it_is_used(
    kept: Callable[[], MountProcess], volume: VolumeConfig
) -> None:
    writer, reader = kept(), kept()
    rng = random.Random(7)
    size = 1 << 20
    expected = bytearray(rng.randbytes(size))
    (writer.path / "f").write_bytes(expected)
    most = 0
    with (
        (writer.path / "f").open("r+b", buffering=0) as file,
        (reader.path / "f").open("rb", buffering=0) as there,
    ):
        for number in range(3 * FRAGMENTED):
            at, piece = rng.randrange(size - 400), rng.randbytes(rng.randrange(1, 400))
            assert os.pwrite(file.fileno(), piece, at) == len(piece)
            os.fsync(file.fileno())
            expected[at : at + len(piece)] = piece
            if number % 16 == 0:
                low = rng.randrange(size - 5000)
                assert os.pread(there.fileno(), 5000, low) == expected[low : low + 5000]
                most = max(most, refs(volume))
        assert most > 1
        assert (reader.path / "f").read_bytes() == expected
        until(
            lambda: refs(volume) < FRAGMENTED and bool((reader.path / "f").read_bytes()), PATIENCE
        )
        os.fsync(file.fileno())
        assert os.pread(there.fileno(), size, 0) == expected
    assert (writer.path / "f").read_bytes() == expected
    until(lambda: not rows(volume)["deleted"], PATIENCE)
    assert not missing_objects(volume)
    assert not stray_objects(volume)
    assert writer.log.read_text() + reader.log.read_text() == ""


@pytest.mark.timeout(150)
def test_a_file_that_is_only_written_is_compacted_too(
    kept: Callable[[], MountProcess], volume: VolumeConfig
) -> None:
    path = kept().path
    rng = random.Random(8)
    size = 1 << 20
    expected = bytearray(size)
    (path / "f").write_bytes(expected)
    descriptor = os.open(path / "f", os.O_WRONLY)
    try:
        for _ in range(2 * FRAGMENTED):
            at = rng.randrange(size - 10)
            os.pwrite(descriptor, b"0123456789", at)
            os.fsync(descriptor)
            expected[at : at + 10] = b"0123456789"
        until(lambda: refs(volume) < FRAGMENTED, PATIENCE)
    finally:
        os.close(descriptor)
    assert (path / "f").read_bytes() == expected
