"""SOAK: mixed work on two mounts and a server, for as long as wanted; nothing is left behind."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.harness.loop import run
from tests.harness.volumes.fsck import fsck_clean
from tests.harness.volumes.leaks import ENDED, listed, missing_objects, rows, stray_objects
from tests.soak.workers import Worker, serve
from wrkfs.atime import DUE_MAX, SENT_MAX
from wrkfs.attribute_cache import COMMITTED_MAX
from wrkfs.fs import Filesystem
from wrkfs.upkeep import gc, trash

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

STEPS = 120
"""Steps of each worker in one round."""
WARM = 3
"""Rounds until caches and pools have their size."""
MOST = 320 << 20
"""Bytes that a mount may have at most: 128 MiB dirty, 64 MiB of blocks, both kept by the allocator
for a while after their use, and the process itself."""
ROOM = 48 << 20
"""Bytes by which a mount's memory may swing while its caches fill and empty."""
LONG = 20 * 60.0
"""Seconds after which the slope of the memory means something."""
SLOPE = 1 << 20
"""Bytes an hour."""
TABLES = max(COMMITTED_MAX, DUE_MAX, SENT_MAX)
"""Inodes that fill every table of a mount."""


@pytest.mark.figure("SOAK")
@pytest.mark.timeout(180)
def test_mixed_work_leaves_nothing_behind(
    mount: Callable[[], MountProcess], volume: VolumeConfig, figures: Figures
) -> None:
    mounts = [mount(), mount()]
    memory: list[list[tuple[float, int]]] = [[], []]
    if figures.long:
        for made in mounts:
            fill(made)
    for number in figures(ci=3, long=1_000_000):
        work(mounts, volume, number)
        fsck_clean(volume)
        assert not stray_objects(volume)
        assert not missing_objects(volume)
        clear(mounts[number % 2])
        fsck_clean(volume)
        for made, samples in zip(mounts, memory, strict=True):
            samples.append((time.monotonic(), psutil.Process(made.pid).memory_info().rss))
    for made, samples in zip(mounts, memory, strict=True):
        assert made.stop() == 0, made.log.read_text()
        print("memory, MiB:", [size >> 20 for _, size in samples])
    run(nothing_is_left(volume))
    for samples in memory:
        check_memory(samples)


def work(mounts: list[MountProcess], volume: VolumeConfig, number: int) -> None:
    """One round: two workers on each mount, and a server beside them."""
    one, other = (made.path for made in mounts)
    workers = [
        Worker(f"w{n}", *((one, other) if n % 2 else (other, one)), seed=number * 100 + n)
        for n in range(4)
    ]
    stop = threading.Event()
    with ThreadPoolExecutor(len(workers) + 1) as pool:
        server = pool.submit(run, serve(volume, number, stop))
        try:
            for done in [pool.submit(worker.work, STEPS) for worker in workers]:
                done.result()
        finally:
            stop.set()
        assert server.result() > 0


def fill(made: MountProcess) -> None:
    """Fills the tables that a mount bounds by number of inodes, so that only leaks grow later."""
    for number in range(TABLES):
        file = made.path / f"fill{number}"
        file.write_bytes(b"x")
        assert file.read_bytes() == b"x"
        file.unlink()


def clear(made: MountProcess) -> None:
    """Removes everything through one mount."""
    for entry in made.path.iterdir():
        shutil.rmtree(entry)
    assert list(made.path.iterdir()) == []


def check_memory(samples: list[tuple[float, int]]) -> None:
    """Flat: no round far above the warm ones; over a long run, no slope."""
    assert max(size for _, size in samples) <= MOST, samples
    warm = samples[WARM - 1 :]
    if not warm:
        return
    sizes = [size for _, size in warm]
    assert max(sizes) <= sizes[0] + ROOM, sizes
    hours = (warm[-1][0] - warm[0][0]) / 3600
    if hours * 3600 >= LONG:
        quarter = len(sizes) // 4
        growth = median(sizes[-quarter:]) - median(sizes[quarter : 2 * quarter])
        assert growth / (hours * 5 / 8) <= SLOPE, sizes


async def nothing_is_left(volume: VolumeConfig) -> None:
    """No object and no row, once the trash is emptied and garbage collected."""
    # Two sessions: what is removed after a session's heartbeat, its own garbage collection keeps.
    fs = await Filesystem.connect(volume)
    await trash.empty(fs)
    await fs.close()
    fs = await Filesystem.connect(volume)
    await gc.collect(fs, grace=timedelta(0))
    await fs.close()
    assert await asyncio.to_thread(rows, volume, ENDED) == ENDED
    assert await asyncio.to_thread(listed, volume.store) == set()
