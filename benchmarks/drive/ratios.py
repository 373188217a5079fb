"""Computes the figures of the drive's results: ratios to JuiceFS and to FUSE, and verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.drive.goals import (
    GOALS,
    GROWTH,
    HAND_OFF_MS,
    PARALLEL_PEER,
    SCALING,
    SHORT,
    at_most,
    verdict,
)
from wrkfs.bench.figures import summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wrkfs.bench.measure import Measurements

Works = dict[str, dict[str, Any]]
US, THEM, LIMIT = "ours", "juicefs", "passthrough"
RATIO = ("ratio", "ratio_min", "ratio_max", "goal")
"""Keys of a ratio to JuiceFS. Those of the ratio to the passthrough start with `limit_`."""


def compare(measurements: Measurements) -> Works:
    """Return the figures of one client: medians, both ratios, their goals, and the verdict."""
    peer_goals = {name: goal.peer for name, goal in GOALS.items()}
    limit_goals = {name: goal.limit for name, goal in GOALS.items() if goal.limit is not None}
    works = summary(measurements, US, THEM, peer_goals)
    limits = summary(measurements, US, LIMIT, limit_goals)
    for name, figures in works.items():
        found = limits[name]
        figures |= {f"limit_{key}": found[key] for key in RATIO if key in found}
        figures["verdict"] = verdict(
            [
                (figures["ratio"], figures.get("goal")),
                (figures["limit_ratio"], figures.get("limit_goal")),
            ]
        )
    return works


def compare_parallel(measurements: Measurements, alone: Works) -> Works:
    """Return the figures of several clients, with their rate relative to that of one client."""
    works = summary(measurements, US, THEM, dict.fromkeys(measurements, PARALLEL_PEER))
    for name, figures in works.items():
        ours, one = figures.get(US), alone[name].get(US)
        scaling = ours / one if isinstance(ours, float) and isinstance(one, float) else None
        figures |= {"scaling": scaling, "scaling_goal": SCALING}
        figures["verdict"] = verdict([(figures["ratio"], PARALLEL_PEER), (scaling, SCALING)])
    return works


def judge_hand_off(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a ping-pong with the goal and the verdict. A stale stat is short."""
    result = at_most(figures.get("hand_off_p50_ms"), HAND_OFF_MS)
    if figures.get("stale"):
        result = SHORT
    return {**figures, "goal_ms": HAND_OFF_MS, "verdict": result}


def judge_growth(works: Works) -> Works:
    """Return the works with `cost`, which is the ratio of the small to the large case."""
    judged = {}
    for name, figures in works.items():
        others = {key: value for key, value in figures.items() if key != "ratio"}
        cost = figures["ratio"]
        judged[name] = others | {"cost": cost, "goal": GROWTH, "verdict": at_most(cost, GROWTH)}
    return judged


def named(works: Mapping[str, Mapping[str, Any]], result: str) -> list[str]:
    """Return the names of the works with a verdict."""
    return [name for name, figures in works.items() if figures["verdict"] == result]
