"""What CRIU knows of the kernel, on a host whose /run is on a disk, and on one where it is not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from boxd.backends.checkpoint import criu_cache
from boxd.backends.host import mounts
from boxd.backends.host.run import run

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.backends.checkpoint.criu import Verdict


@pytest.fixture
def program(verdict: Verdict) -> Path:
    """The CRIU of this host."""
    assert verdict.program is not None, verdict.text
    return verdict.program.path


async def test_it_looks_once(tmp_path: Path, program: Path) -> None:
    place = tmp_path / "found"
    for _ in range(2):  # the next start of the service replaces it
        await criu_cache.keep(program, place)
        assert [path.name for path in tmp_path.iterdir()] == ["found"]
        assert place.stat().st_size > 100
    criu_cache.drop(place, only_old=True)
    assert place.exists()
    os.utime(place, (1, 1))
    criu_cache.drop(place, only_old=True)
    assert not place.exists()
    await criu_cache.keep(program, place)
    for _ in range(2):
        criu_cache.drop(place)
        assert not place.exists()


async def test_a_host_that_keeps_it_itself(tmp_path: Path, program: Path) -> None:
    place = tmp_path / "found"
    await run("mount", "-t", "tmpfs", "memory", str(tmp_path))
    try:
        await criu_cache.keep(program, place)
        assert list(tmp_path.iterdir()) == []
        place.touch()
        criu_cache.drop(place)
        assert place.exists()
    finally:
        mounts.unmount(tmp_path, lazily=True)


async def test_a_program_that_finds_nothing_costs_nothing(tmp_path: Path) -> None:
    for name in ("/bin/true", "/bin/false", "missing"):
        await criu_cache.keep(tmp_path / name, tmp_path / "found")
        assert list(tmp_path.iterdir()) == []
