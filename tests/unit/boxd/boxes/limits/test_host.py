"""What all boxes of a host may take together."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.files import memory_for_boxes
from boxd.boxes.limits.host import OVERCOMMIT, HostLimits, check_floor, free_mb, host_limits
from boxd.errors import BadRequest, Unavailable
from boxd.model.box import BoxState
from tests.harness.boxes.records import BOX

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3


def limits(tmp_path: Path, **changes: int) -> HostLimits:
    """Generous but for what the test says."""
    values = {"running": 100, "mem_mb": 10**6, "free_mb": 0} | changes
    return HostLimits(state_dir=tmp_path, **values)


def test_running_boxes_are_counted_whoever_owns_them(tmp_path: Path) -> None:
    boxes = [replace(BOX, owner=owner, state=BoxState.RUNNING) for owner in ("a", "b")]
    asleep = replace(BOX, state=BoxState.SUSPENDED)
    limits(tmp_path, running=3).check([*boxes, asleep], mem_mb=1)
    with pytest.raises(Unavailable, match="limit reached: 2 running boxes on this host; try"):
        limits(tmp_path, running=2).check([*boxes, asleep], mem_mb=1)


@pytest.mark.parametrize(
    "state", [BoxState.CREATING, BoxState.RUNNING, BoxState.RESUMING, BoxState.SUSPENDING]
)
def test_memory_is_summed_over_boxes_that_are_awake(tmp_path: Path, state: BoxState) -> None:
    boxes = [replace(BOX, state=state, mem_mb=600), replace(BOX, state=BoxState.FAILED)]
    limits(tmp_path, mem_mb=1000).check(boxes, mem_mb=400)
    with pytest.raises(Unavailable, match="limit reached: 1000 MiB of memory of running boxes"):
        limits(tmp_path, mem_mb=1000).check(boxes, mem_mb=401)


def test_a_full_disk_takes_no_more_boxes(tmp_path: Path) -> None:
    free = free_mb(tmp_path)
    limits(tmp_path, free_mb=free // 2).check([], mem_mb=1)
    with pytest.raises(
        Unavailable, match=rf"limit reached: this host keeps {free * 2} MiB of disk.*MiB are free"
    ):
        limits(tmp_path, free_mb=free * 2).check([], mem_mb=1)


def test_a_floor_that_no_disk_of_this_size_can_have_is_refused(tmp_path: Path) -> None:
    size = shutil.disk_usage(tmp_path).total
    for possible in (None, 0, size // 2):
        check_floor(tmp_path, possible)
    for floor in (size, size + GIB):
        with pytest.raises(BadRequest, match=rf"--min-free: {floor >> 20} MiB .*; give less"):
            check_floor(tmp_path, floor)


@pytest.mark.parametrize(
    ("total_kb", "for_boxes"),
    [(24 * GIB // 1024, 24576 - 1024 - 2458), (2 * GIB // 1024, 1024), (GIB // 1024, 512)],
)
def test_boxes_leave_memory_to_the_host(tmp_path: Path, total_kb: int, for_boxes: int) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal:       {total_kb} kB\nMemFree:  1 kB\n")
    assert memory_for_boxes(meminfo) >> 20 == for_boxes
    assert host_limits(tmp_path, meminfo=meminfo).mem_mb == OVERCOMMIT * for_boxes
    assert host_limits(tmp_path, ceiling=False, meminfo=meminfo).mem_mb == for_boxes


def test_the_operator_decides(tmp_path: Path) -> None:
    assert host_limits(tmp_path, running=7, memory=3 * GIB, free=GIB) == HostLimits(
        state_dir=tmp_path, running=7, mem_mb=3072, free_mb=1024
    )
    shipped = host_limits(tmp_path)
    assert shipped.running > 0
    assert 0 < shipped.free_mb <= 2048
