"""The goals of the benchmarks: for each work, the ratio of our rate to that of JuiceFS."""

from __future__ import annotations

GOALS = {
    "create": 3.0,
    "create_write_4k": 4.0,
    "stat_cold": 1.0,
    "stat_warm": 0.9,
    "open_read_4k_cold": 1.5,
    "open_read_4k_warm": 3.0,
    "readdir_1000": 1.0,
    "rename": 3.0,
    "unlink": 5.0,
    "mkdir": 3.0,
    "rmdir": 3.0,
    "untar": 4.0,
    "rm_rf": 5.0,
    "git_clone_status": 4.0,
    "pip_install": 4.0,
    "seq_write_fsync": 1.2,
    "seq_read_cold": 1.0,
    "seq_read_warm": 1.0,
    "rand_write_fsync_4k": 3.0,
}
HAND_OFF_MS = 2.0
"""Goal of the median of a create on one mount plus a stat on another."""
GROWTH = 1.5
"""Goal of the cost of an operation in the large case, relative to the small one."""
CLIENTS = 4
"""Clients of the parallel works. The goal of their ratio is that of one client."""
