"""SOAK: mixed work on two mounts and a server, for as long as wanted; nothing is left behind."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import linear_regression, variance
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.harness.fsck import fsck_clean
from tests.harness.leaks import ENDED, listed, missing_objects, rows, stray_objects
from tests.harness.loop import run
from tests.soak.workers import Worker, serve
from wrkfs import gc, trash
from wrkfs.atime import DUE_MAX
from wrkfs.config import Limits
from wrkfs.fs import Filesystem
from wrkfs.shown import KNOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.drive import MountProcess
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
LONG = 15 * 60.0
"""Seconds after which the slope of the memory means something."""
MIB = 1 << 20
SLOPE = MIB
"""Bytes an hour; more is a leak if it is more than chance: two standard errors above."""
IDLE = 4.0
"""Seconds without a request, in which a mount gives back what its allocator has free: what is left
differs less from round to round."""
CACHED = Limits().blocks * 5 // 4
"""Bytes of a file that takes the cache of blocks for itself."""
TABLES = max(KNOWN_MAX, DUE_MAX)
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
        if figures.long:
            for made in mounts:
                settle(made)
            time.sleep(IDLE)
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


def settle(made: MountProcess) -> None:
    """Fills the cache of blocks anew: what it holds after a round differs by some MiB."""
    file = made.path / "settle"
    file.write_bytes(bytes(range(256)) * (CACHED // 256))
    assert len(file.read_bytes()) == CACHED
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
    steady = warm[len(warm) // 4 :]
    if steady[-1][0] - steady[0][0] >= LONG:
        slope, error = trend(steady)
        print(f"slope: {slope / MIB:.2f} +- {error / MIB:.2f} MiB an hour")
        assert slope - 2 * error <= SLOPE, sizes


def trend(samples: list[tuple[float, int]]) -> tuple[float, float]:
    """Slope of the line through the samples and its standard error, per hour."""
    hours = [at / 3600 for at, _ in samples]
    sizes = [size for _, size in samples]
    slope, start = linear_regression(hours, sizes)
    left = sum((size - start - slope * at) ** 2 for at, size in zip(hours, sizes, strict=True))
    spread = variance(hours) * (len(hours) - 1)
    return slope, math.sqrt(left / (len(hours) - 2) / spread)


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
