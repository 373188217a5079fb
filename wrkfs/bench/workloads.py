"""All workloads by name, in the order of their execution."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from wrkfs.bench import large, real, small, tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.bench.place import Place


class Caches(Enum):
    """State of the caches before a workload."""

    AS_THEY_ARE = "as they are"
    COLD = "dropped"
    WARM = "filled by a pass"


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table."""

    name: str
    unit: str
    run: Callable[[Place], int]
    """The measured function; returns the number of units."""
    prepare: Callable[[Place], None] | None = None
    """Creates the missing files that `run` needs. It is not measured."""
    caches: Caches = Caches.AS_THEY_ARE


OPS, FILES, MIB = "ops/s", "files/s", "MiB/s"

ALL = (
    Workload("create", OPS, small.create),
    Workload("create_write_4k", OPS, small.create_write_4k),
    Workload("stat_cold", OPS, small.stat, small.prepare_small, Caches.COLD),
    Workload("stat_warm", OPS, small.stat_again, small.prepare_small, Caches.WARM),
    Workload("open_read_4k_cold", OPS, small.open_read, small.prepare_small, Caches.COLD),
    Workload("open_read_4k_warm", OPS, small.open_read_again, small.prepare_small, Caches.WARM),
    Workload("readdir_1000", "entries/s", small.readdir, small.prepare_listed, Caches.COLD),
    Workload("rename", OPS, small.rename, small.prepare_empty),
    Workload("unlink", OPS, small.unlink, small.prepare_small),
    Workload("mkdir", OPS, small.mkdir),
    Workload("rmdir", OPS, small.rmdir, small.prepare_folders),
    Workload("untar", FILES, tools.untar),
    Workload("rm_rf", FILES, tools.rm_rf, tools.prepare_tree),
    Workload("git_clone_status", FILES, tools.git_clone_status),
    Workload("pip_install", FILES, tools.pip_install),
    Workload("seq_write_fsync", MIB, large.seq_write_fsync),
    Workload("seq_read_cold", MIB, large.seq_read, large.prepare_large, Caches.COLD),
    Workload("seq_read_warm", MIB, large.seq_read, large.prepare_large, Caches.WARM),
    Workload("rand_write_fsync_4k", OPS, large.rand_write_fsync_4k, large.prepare_large),
    Workload("real_git_clone", FILES, real.git_clone, real.prepare_root),
    Workload("real_untar", FILES, real.untar, real.prepare_root),
    Workload("real_npm_install", FILES, real.npm_install, real.prepare_root),
    Workload("real_pip_install", FILES, real.pip_install, real.prepare_root),
    Workload("real_sqlite", OPS, real.transactions, real.prepare_root),
    Workload("real_find_cold", FILES, real.find, real.prepare_parts, Caches.COLD),
    Workload("real_grep_cold", FILES, real.grep, real.prepare_parts, Caches.COLD),
    Workload("real_grep_warm", FILES, real.grep, real.prepare_parts, Caches.WARM),
    Workload("real_git_status_cold", FILES, real.git_status, real.prepare_clone, Caches.COLD),
    Workload("real_rm_rf", FILES, real.rm_rf, real.prepare_parts),
)

REAL = frozenset(workload.name for workload in ALL if workload.name.startswith("real_"))
"""Names of the works on a real project."""
COLD = frozenset(workload.name for workload in ALL if workload.caches is Caches.COLD)
"""Names of the works with cold caches."""
BY_NAME = {workload.name: workload for workload in ALL}
