"""PX-5: the memory of a mount stays bounded, however much is written and however slow the store."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness.memory import resident
from tests.harness.mounts.failing_mount import FailingMount
from tests.harness.wait import until
from wrkfs.config import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.mounts.drive import MountProcess
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig

MIB = 1024 * 1024
CALLS = 500
"""Programs that wait at once."""
WAITING_SIZE = 70_000
SPARE = 160 * MIB
"""What a mount may grow beyond its limits: uploads under way, copies, the allocator's slack."""


@pytest.mark.figure("PX-5")
@pytest.mark.timeout(300)
def test_memory_is_bounded_while_much_is_written(
    mount: Callable[[], MountProcess], figures: Figures
) -> None:
    drive = mount()
    before = resident(drive.pid)
    piece = os.urandom(MIB)
    for number in figures(ci=2, long=16):
        path = drive.path / f"f{number % 2}"
        with path.open("wb", buffering=0) as file:
            for _ in range(256):
                file.write(piece)
    limits = Limits()
    grown = resident(drive.pid) - before
    print(f"grown by {grown // MIB} MiB")
    assert grown <= limits.dirty + limits.blocks + SPARE


async def test_an_idle_mount_gives_back_what_the_allocator_has_free(
    mount: Callable[[], MountProcess],
) -> None:
    drive = await asyncio.to_thread(mount)
    sizes = random.Random(1).choices((4096, 70_000, 300_000, MIB), k=300)
    for number, size in enumerate(sizes):
        (drive.path / f"f{number}").write_bytes(os.urandom(size))
    for number in range(len(sizes)):
        (drive.path / f"f{number}").read_bytes()
    limit = resident(drive.pid, "VmRSS") - 4 * MIB
    await until(lambda: resident(drive.pid, "VmRSS") < limit)


@pytest.fixture
def failing(
    volume: VolumeConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FailingMount]:
    """A mount with failpoints."""
    made = FailingMount(volume, tmp_path_factory.mktemp("mount"))
    yield made
    made.clean()


@pytest.mark.figure("PX-5")
@pytest.mark.timeout(120)
def test_a_handler_that_breaks_leaves_the_mount_usable(
    failing: FailingMount, figures: Figures
) -> None:
    (failing.path / "file").write_bytes(b"bytes")
    for number in figures(ci=100, long=1000):
        failing.set("before_commit", "bug", "mkdir")
        with pytest.raises(OSError, match="Input/output error"):
            (failing.path / f"d{number}").mkdir()
        assert not failing.trap.exists()
        assert (failing.path / "file").read_bytes() == b"bytes"


@pytest.mark.timeout(120)
def test_many_waiting_calls_keep_nobody_else_waiting(failing: FailingMount) -> None:
    hold = failing.path.parent / "hold"
    hold.touch()
    waiting = threading.Semaphore(0)
    threads = [
        threading.Thread(target=write_and_wait, args=(failing.path / f"f{number}", waiting))
        for number in range(CALLS)
    ]
    times = []
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            assert waiting.acquire(timeout=60)
        for number in range(200):
            began = time.monotonic()
            (failing.path / f"f{number}").stat()
            times.append(time.monotonic() - began)
        assert all(thread.is_alive() for thread in threads), "nobody waits"
    finally:
        hold.unlink()
        for thread in threads:
            thread.join(60)
    assert {path.stat().st_size for path in failing.path.iterdir()} == {WAITING_SIZE}
    print(f"stat beside {CALLS} waiting calls: p99 {sorted(times)[-3] * 1000:.1f} ms")


def write_and_wait(path: Path, waiting: threading.Semaphore) -> None:
    """A program that writes more than stands in the database, and waits for the store."""
    with path.open("wb", buffering=0) as file:
        file.write(bytes(WAITING_SIZE))
        waiting.release()
        os.fsync(file.fileno())
