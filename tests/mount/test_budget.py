"""The benchmark's counting mount: what it counts is what the mount does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.budget import Counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wrkfs.config import VolumeConfig

FILES = 20


@pytest.fixture
def counted(volume: VolumeConfig, tmp_path: Path) -> Iterator[Counted]:
    """A mount."""
    made = Counted(volume, tmp_path)
    made.mount()
    try:
        yield made
    finally:
        made.unmount()


def test_a_real_mount_is_counted(counted: Counted) -> None:
    counted.take()
    for number in range(FILES):
        (counted.path / f"f{number}").write_bytes(b"bytes")
    found = counted.take()
    for kind, name in (("fuse", "create"), ("fuse", "flush"), ("database", "create")):
        assert len(found["calls"][kind][name]) == FILES, name
    assert found["calls"]["database"]["(prepare)"]
    assert found["calls"]["database"]["commit"]
    assert found["used"]["user_s"] > 0
    assert found["used"]["switches"] > 0
    (counted.path / "large").write_bytes(bytes(1 << 20))
    assert counted.take()["calls"]["objects"]["PUT"]
    counted.cool()
    assert (counted.path / "large").read_bytes() == bytes(1 << 20)
    assert counted.take()["calls"]["objects"]["GET"]
