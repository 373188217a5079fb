"""What is wanted of each work: ours divided by JuiceFS, in one run."""

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
"""Median of a creation by one mount and the look of another one at it."""
GROWTH = 1.5
"""What an operation may cost in the large case, against the small one."""
CLIENTS = 4
"""Clients of the parallel works; their ratio is to be no lower than that of one."""
