"""What CRIU knows of the kernel, on a host whose /run is on a disk, and on one where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends import criu_cache, mounts
from boxd.backends.run import run

if TYPE_CHECKING:
    from boxd.backends.criu import Verdict


MOUNTS = Path("/proc/self/mountinfo")


@pytest.fixture
def program(verdict: Verdict) -> Path:
    """The CRIU of this host."""
    assert verdict.program is not None, verdict.text
    return verdict.program.path


async def test_it_looks_once(tmp_path: Path, program: Path) -> None:
    place = tmp_path / "found"
    try:
        for _ in range(2):  # the next start of the service finds what the first one has left
            await criu_cache.keep(program, tmp_path, place)
            assert mounts.mount_points(MOUNTS).count(str(place)) == 1
            assert place.stat().st_size > 100
    finally:
        criu_cache.drop(place)
    assert not place.exists()
    assert str(place) not in mounts.mount_points(MOUNTS)
    criu_cache.drop(place)


async def test_a_host_that_keeps_it_itself(tmp_path: Path, program: Path) -> None:
    await run("mount", "-t", "tmpfs", "memory", str(tmp_path))
    try:
        await criu_cache.keep(program, tmp_path, tmp_path / "found")
        assert list(tmp_path.iterdir()) == []
    finally:
        mounts.unmount(tmp_path, lazily=True)


async def test_a_program_that_finds_nothing_costs_nothing(tmp_path: Path) -> None:
    place = tmp_path / "found"
    for name in ("true", "false", "missing"):
        await criu_cache.keep(tmp_path / name, tmp_path, place)
        assert not place.exists()
