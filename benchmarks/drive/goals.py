"""The goals of the benchmarks, by work: the ratios of our rate to those of JuiceFS and of FUSE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MET, SHORT, UNKNOWN = "met", "short", "unknown"


@dataclass(frozen=True, slots=True)
class Goal:
    """The least ratios of one work."""

    peer: float = 1.0
    """Our rate relative to that of JuiceFS. No work may be slower."""
    limit: float | None = None
    """Our rate relative to that of the passthrough, which is the limit of FUSE. None: no goal."""


HALF, THIRD, WARM = 1 / 2, 1 / 3, 0.7
"""Shares of the passthrough: of changes, of reads and synchronous writes, and with warm caches."""
GOALS = {
    "create": Goal(3.0, HALF),
    "create_write_4k": Goal(4.0, HALF),
    "stat_cold": Goal(),
    "stat_warm": Goal(1.0, WARM),
    "open_read_4k_cold": Goal(1.5, THIRD),
    "open_read_4k_warm": Goal(3.0, WARM),
    "readdir_1000": Goal(),
    "rename": Goal(3.0, HALF),
    "unlink": Goal(5.0, HALF),
    "mkdir": Goal(3.0, HALF),
    "rmdir": Goal(3.0, HALF),
    "untar": Goal(4.0, HALF),
    "rm_rf": Goal(5.0, HALF),
    "git_clone_status": Goal(4.0, HALF),
    "pip_install": Goal(4.0, HALF),
    "seq_write_fsync": Goal(1.2),
    "seq_read_cold": Goal(),
    "seq_read_warm": Goal(1.0, WARM),
    "rand_write_fsync_4k": Goal(3.0, THIRD),
    "real_git_clone": Goal(1.0, HALF),
    "real_untar": Goal(1.0, HALF),
    "real_npm_install": Goal(1.0, HALF),
    "real_pip_install": Goal(1.0, HALF),
    "real_sqlite": Goal(1.0, THIRD),
    "real_find_cold": Goal(1.0, THIRD),
    "real_grep_cold": Goal(1.0, THIRD),
    "real_grep_warm": Goal(1.0, WARM),
    "real_git_status_cold": Goal(),
    "real_rm_rf": Goal(1.0, HALF),
}
CLIENTS = 4
"""Clients of the parallel works."""
PARALLEL_PEER = 1.0
"""Goal of the parallel works: our rate relative to that of JuiceFS."""
SCALING = 1.5
"""Goal of the parallel works: our rate relative to that of one client."""
HAND_OFF_MS = 2.0
"""Goal of the median of a create on one mount plus a stat on another."""
GROWTH = 1.5
"""Goal of the cost of an operation in the large case, relative to the small one."""


def verdict(pairs: Sequence[tuple[float | None, float | None]]) -> str:
    """Judge pairs of a ratio and its goal: all are met, one is short, or one was not measured.

    A goal of None is no goal. A ratio of None was not measured.
    """
    goals = [(ratio, goal) for ratio, goal in pairs if goal is not None]
    if any(ratio is not None and ratio < goal for ratio, goal in goals):
        return SHORT
    if not goals or any(ratio is None for ratio, _ in goals):
        return UNKNOWN
    return MET


def at_most(value: float | None, goal: float) -> str:
    """Judge a figure whose goal is an upper bound. None was not measured."""
    if value is None:
        return UNKNOWN
    return MET if value <= goal else SHORT
