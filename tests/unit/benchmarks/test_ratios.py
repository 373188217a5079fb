"""Ratios to JuiceFS and to the passthrough, and the verdicts on the goals."""

from __future__ import annotations

import pytest

from benchmarks.drive.goals import GOALS, MET, SHORT, UNKNOWN, Goal, at_most, verdict
from benchmarks.drive.ratios import (
    compare,
    compare_parallel,
    judge_growth,
    judge_hand_off,
    named,
)
from wrkfs.bench.measure import Measurements, Series
from wrkfs.bench.workloads import ALL, BY_NAME, REAL


def measurements(work: str, **rates: list[float]) -> Measurements:
    """The repetitions of one work by target."""
    return {work: {name: Series(values) for name, values in rates.items()}}


def test_every_work_has_a_goal() -> None:
    assert set(GOALS) == set(BY_NAME)
    assert len(BY_NAME) == len(ALL)


def test_no_work_may_be_slower_than_the_peer() -> None:
    assert min(goal.peer for goal in GOALS.values()) == 1.0


@pytest.mark.parametrize(
    ("limit", "names"),
    [
        (1 / 2, ["create", "create_write_4k", "mkdir", "rmdir", "rename", "unlink", "untar"]),
        (1 / 2, ["real_git_clone", "real_untar", "real_npm_install", "real_pip_install"]),
        (1 / 2, ["rm_rf", "real_rm_rf", "git_clone_status", "pip_install"]),
        (1 / 3, ["open_read_4k_cold", "rand_write_fsync_4k", "real_sqlite"]),
        (1 / 3, ["real_find_cold", "real_grep_cold"]),
        (0.7, ["stat_warm", "open_read_4k_warm", "seq_read_warm", "real_grep_warm"]),
        (None, ["stat_cold", "readdir_1000", "seq_write_fsync", "seq_read_cold"]),
        (None, ["real_git_status_cold"]),
    ],
)
def test_works_have_the_share_of_the_passthrough_as_a_goal(
    limit: float | None, names: list[str]
) -> None:
    assert {GOALS[name].limit for name in names} == {limit}


def test_every_warm_and_every_real_work_is_judged() -> None:
    warm = {name for name in BY_NAME if name.endswith("_warm")}
    assert all(GOALS[name].limit == 0.7 for name in warm)
    assert all(GOALS[name].limit for name in REAL - {"real_git_status_cold"})


def test_both_ratios_are_medians_of_the_repetitions() -> None:
    rates = {"juicefs": [1.0, 2.0, 1.0], "passthrough": [8.0, 8.0, 16.0]}
    figures = compare(measurements("mkdir", ours=[4.0, 4.0, 6.0], **rates))["mkdir"]
    assert (figures["ours"], figures["juicefs"], figures["passthrough"]) == (4.0, 1.0, 8.0)
    assert (figures["ratio"], figures["ratio_min"], figures["ratio_max"]) == (4.0, 2.0, 6.0)
    assert (figures["limit_ratio"], figures["limit_ratio_min"]) == (0.5, 0.375)
    assert (figures["goal"], figures["limit_goal"]) == (3.0, 0.5)
    assert figures["verdict"] == MET


@pytest.mark.parametrize(
    ("ours", "juicefs", "passthrough", "expected"),
    [
        (6.0, 2.0, 12.0, MET),
        (6.0, 3.0, 12.0, SHORT),
        (6.0, 2.0, 13.0, SHORT),
        (6.0, 2.0, None, UNKNOWN),
        (6.0, 3.0, None, SHORT),
        (6.0, None, 12.0, UNKNOWN),
        (None, 2.0, 12.0, UNKNOWN),
    ],
)
def test_a_work_meets_its_goals_only_if_both_ratios_reach_them(
    ours: float | None, juicefs: float | None, passthrough: float | None, expected: str
) -> None:
    rates = {"ours": ours, "juicefs": juicefs, "passthrough": passthrough}
    found = measurements("mkdir", **{name: [rate] for name, rate in rates.items() if rate})
    assert compare(found)["mkdir"]["verdict"] == expected


def test_a_work_without_a_share_of_the_passthrough_is_judged_by_the_peer() -> None:
    found = measurements("stat_cold", ours=[2.0], juicefs=[1.0], passthrough=[100.0])
    figures = compare(found)["stat_cold"]
    assert figures["limit_ratio"] == 0.02
    assert "limit_goal" not in figures
    assert figures["verdict"] == MET


def test_a_failure_leaves_the_verdict_open() -> None:
    found = measurements("mkdir", ours=[6.0], passthrough=[8.0])
    found["mkdir"]["juicefs"] = Series([], ["no space"])
    figures = compare(found)["mkdir"]
    assert (figures["juicefs"], figures["ratio"], figures["limit_ratio"]) == ("fails", None, 0.75)
    assert figures["verdict"] == UNKNOWN
    assert figures["errors"] == {"juicefs": "no space"}


@pytest.mark.parametrize(
    ("ours", "juicefs", "expected"), [(15.0, 15.0, MET), (14.0, 10.0, SHORT), (15.0, 16.0, SHORT)]
)
def test_clients_are_compared_with_one_client_and_the_peer(
    ours: float, juicefs: float, expected: str
) -> None:
    alone = compare(measurements("mkdir", ours=[10.0], juicefs=[1.0], passthrough=[11.0]))
    four = compare_parallel(measurements("mkdir", ours=[ours], juicefs=[juicefs]), alone)
    assert four["mkdir"]["scaling"] == ours / 10
    assert four["mkdir"]["verdict"] == expected
    assert named(four, SHORT) == (["mkdir"] if expected == SHORT else [])


def test_clients_without_a_figure_of_one_client_are_not_judged() -> None:
    alone = measurements("mkdir", juicefs=[1.0])
    alone["mkdir"]["ours"] = Series([], ["no mount"])
    four = compare_parallel(measurements("mkdir", ours=[9.0], juicefs=[1.0]), compare(alone))
    assert four["mkdir"]["scaling"] is None
    assert four["mkdir"]["verdict"] == UNKNOWN


@pytest.mark.parametrize(
    ("milliseconds", "stale", "expected"), [(2.0, 0, MET), (2.1, 0, SHORT), (1.0, 1, SHORT)]
)
def test_a_hand_off_is_judged_by_its_time_and_by_stale_answers(
    milliseconds: float, stale: int, expected: str
) -> None:
    figures = judge_hand_off({"hand_off_p50_ms": milliseconds, "stale": stale})
    assert figures["verdict"] == expected
    assert figures["goal_ms"] == 2.0
    assert judge_hand_off({"fails": "no mount"})["verdict"] == UNKNOWN


@pytest.mark.parametrize(("cost", "expected"), [(1.5, MET), (1.6, SHORT), (None, UNKNOWN)])
def test_growth_is_judged_by_its_cost(cost: float | None, expected: str) -> None:
    figures = judge_growth({"create": {"unit": "ops/s", "ratio": cost}})["create"]
    assert figures == {"unit": "ops/s", "cost": cost, "goal": 1.5, "verdict": expected}


def test_nothing_to_judge_is_unknown() -> None:
    assert verdict([]) == verdict([(1.0, None)]) == at_most(None, 1.0) == UNKNOWN
    assert Goal().limit is None
