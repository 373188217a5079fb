"""The files that a benchmark writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.drive import growth, measure
from benchmarks.drive.chart import chart
from benchmarks.drive.goals import GOALS
from benchmarks.report import machine, revision, write
from wrkfs.bench.figures import summary
from wrkfs.bench.measure import Series
from wrkfs.bench.workloads import ALL, BY_NAME

if TYPE_CHECKING:
    from pathlib import Path


def result() -> dict[str, Any]:
    """A run of two works, one of which failed on a peer."""
    found = {
        "create": {"ours": Series([3.0]), "juicefs": Series([1.0]), "disk": Series([9.0])},
        "rename": {"ours": Series([3.0]), "juicefs": Series([], ["no | such"])},
    }
    workloads = summary(found, "ours", "juicefs", GOALS)
    hand_off = {"create_p50_ms": 1.0, "stat_p50_ms": 1.0, "hand_off_p50_ms": 2.0}
    return {
        "machine": machine(),
        **revision(),
        "quick": True,
        "repeat": 1,
        "size": {"files": 1, "tree": 1, "clone": 1, "mib": 1},
        "works": workloads,
        "parallel": {"clients": 4, "repeat": 3, "works": workloads},
        "ping_pong": {
            "ours": {**hand_off, "hand_off_p95_ms": 3.0, "stale": 0, "rounds": 10},
            "juicefs": {"fails": "no mount"},
        },
        "peers": ["ours", "juicefs", "disk"],
        "missing": {"s3fs": "not installed"},
        "growth": {"10 mounts": {"create": workloads["create"] | {"cost": 1.2}}},
    }


def test_every_work_has_a_goal() -> None:
    assert set(GOALS) == set(BY_NAME)
    assert len(BY_NAME) == len(ALL)


def test_a_run_becomes_json_a_table_and_a_chart(tmp_path: Path) -> None:
    found = result()
    ratios = {name: work["ratio"] for name, work in found["works"].items()}
    write(tmp_path, "drive", measure.lines(found), found, chart("<title>", ratios, GOALS))
    kept = json.loads((tmp_path / "drive.json").read_text())
    assert kept["works"]["create"]["ratio"] == 3.0
    assert kept["works"]["rename"]["juicefs"] == "fails"
    text = (tmp_path / "drive.md").read_text()
    assert "| create | ops/s | 3.00 | 1.00 | 9.00 | 3.00 | 3.00 - 3.00 | 3 |" in text
    assert "| rename | ops/s | 3.00 | fails | - | - | - | 3 |" in text
    assert "| juicefs | fails |" in text
    assert "s3fs (not installed)" in text
    drawing = (tmp_path / "drive.svg").read_text()
    assert drawing.startswith("<svg ")
    assert drawing.endswith("</svg>\n")
    assert "&lt;title&gt;" in drawing


def test_growth_shows_the_cost_of_each_operation() -> None:
    text = growth.lines(result()["growth"])
    assert "| create | ops/s | - | - | 1.20 | 3.00 - 3.00 | 3 |" in text
