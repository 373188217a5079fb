"""The figures of many boxes: the costs of each, and the form in which they are kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.boxes.costs import Costs
from benchmarks.boxes.fleet import report
from benchmarks.boxes.waking import Rush, Size
from benchmarks.latency import Times

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

EMPTY = Costs(1000, 80, 20, 1, 50, 30, 5)
FULL = Costs(1300, 81, 220, 5, 50, 30, 6)


def test_the_growth_is_shared_by_the_boxes_that_caused_it() -> None:
    costs = FULL.per_box(EMPTY, 10)
    assert (costs["host"], costs["agents"], costs["drives"]) == (30.0, 20.0, 0.0)


def test_both_files_have_costs_wakes_and_remains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = FULL.per_box(EMPTY, 10)
    rush = Rush(Times(3, [100.0, 300.0]), 0.4, 12.5, costs, ["box asleep1: 503 no memory"])
    result: dict[str, object] = {
        "fleet": {
            "running": 10,
            "suspended": 10,
            "cannot": "",
            "daemon_rss_mb": 81.0,
            "list_ms": Times(2, [1.0, 2.0]).figures(),
            "mib_per_running_box": costs,
            "mib_per_sleeping_box": costs,
            "rush": rush.figures(),
            "left": ["mounts: /a"],
            "not_removed": [],
        },
        "wake_by_memory": [Size(64, Times(1, [200.0]), Times(2, [150.0])).figures()],
        "churn": {"boxes": 8, "left": []},
        "machine": {"cpus": 2},
        "commit": "abc",
        "date": "today",
    }
    report(result, tmp_path)
    table = (tmp_path / "boxes_fleet.md").read_text()
    assert table in capsys.readouterr().out
    assert json.loads((tmp_path / "boxes_fleet.json").read_text()) == result
    for line in (
        "| 3 wakes at once, first answer p50 / p95 / max |  | 100.0 / 300.0 / 300.0 ms |",
        "| the same, lost boxes | none | box asleep1: 503 no memory |",
        "| left by 8 boxes | nothing | nothing |",
        "| left by 10 running, 10 suspended | nothing | mounts: /a |",
        "| running | 30.0 | 0.1 | 20.0 | 0.4 | 0.0 | 0.0 | 0.1 |",
        "| 64 | 200.0 | 150.0 | 50% |",
        "Machine: cpus 2, commit abc, date today",
    ):
        assert line in table.splitlines()
