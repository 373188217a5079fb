"""The figures of boxes: their quantiles, and the form in which they are kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.boxes.measure import GOALS, report
from benchmarks.latency import REFUSALS, CannotError, Times, measured

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NAMES = [
    "create_cold",
    "create_template",
    "create_pool",
    "suspend",
    "suspend_frozen",
    "resume",
    "ssh_wake",
    "exec",
    "fork",
    "suspend_2g",
    "resume_2g",
    "fork_2g",
]


def test_quantiles_are_times_that_were_measured() -> None:
    times = Times(100, [float(ms) for ms in range(100, 0, -1)])
    assert [times.percentile(one) for one in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert Times(1, [7.0]).figures() == {"p50": 7.0, "p95": 7.0, "p99": 7.0, "success": 1.0}


def test_failed_attempts_count_and_have_no_time() -> None:
    times, outcomes = Times(), iter([True, False, True, True])
    measured(times, 4, lambda: next(outcomes))
    assert (times.attempts, len(times.good), times.success) == (4, 3, 0.75)
    unready = Times()
    measured(unready, 2, lambda: True, before=lambda: False)
    assert (unready.attempts, unready.good) == (2, [])
    judged = Times()
    measured(judged, 2, lambda: True, after=lambda: False)
    assert judged.figures() == {"p50": None, "p95": None, "p99": None, "success": 0.0}


def test_what_is_always_refused_is_given_up() -> None:
    asked = []

    def refuse() -> bool:
        asked.append(1)
        raise CannotError("no such thing here")

    times = Times()
    measured(times, 50, refuse)
    measured(times, 50, refuse)
    assert (len(asked), times.attempts, times.success) == (REFUSALS, REFUSALS, 0.0)
    assert times.row("suspend", "<= 400 ms")[2] == "cannot: no such thing here"


def test_what_is_refused_once_has_failed_once() -> None:
    answers = iter([True, False, True, True])

    def sometimes() -> bool:
        if not next(answers):
            raise CannotError("not now")
        return True

    times = Times()
    measured(times, 4, sometimes)
    assert (times.attempts, times.success, times.cannot) == (4, 0.75, "")


def test_both_files_have_every_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: Times(2, [1.25, 2.5]) for name in GOALS}
    found["fork"] = Times(refused="the backend cannot fork")
    report(found, 2, {"cpus": 2}, tmp_path)
    kept = json.loads((tmp_path / "boxes.json").read_text())
    assert list(kept) == NAMES
    assert all(list(one) == ["p50", "p95", "p99", "success"] for one in kept.values())
    assert kept["suspend"] == {"p50": 1.25, "p95": 2.5, "p99": 2.5, "success": 1.0}
    assert kept["fork"] == {"p50": None, "p95": None, "p99": None, "success": 0.0}
    table = (tmp_path / "boxes.md").read_text()
    assert f"| fork | {GOALS['fork']} | cannot: the backend cannot fork" in table
    assert "cpus 2" in table
    assert table in capsys.readouterr().out
