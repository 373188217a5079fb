"""How many processors the agent says a box has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box_guest.process import processors

if TYPE_CHECKING:
    from pathlib import Path

ALL = {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("quota", "whole"),
    [("5000 10000", 1), ("10000 10000", 1), ("10001 10000", 2), ("max 10000", None)],
)
def test_the_quota_is_rounded_up(tmp_path: Path, quota: str, whole: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert processors.limit(tmp_path) == whole
    (tmp_path / "cpu.max").unlink()
    assert processors.limit(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    used, period = quota.replace("max", "-1").split()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(used + "\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text(period + "\n")
    assert processors.limit(tmp_path) == whole


@pytest.mark.parametrize(
    ("quota", "variables"),
    [("15000 10000", {"OMP_NUM_THREADS": "2"}), ("40000 10000", {}), ("max 10000", {})],
)
def test_variables_only_where_the_box_has_less_than_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, variables: dict[str, str]
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: ALL)
    (tmp_path / "cpu.max").write_text(quota)
    assert processors.environment(tmp_path) == variables
