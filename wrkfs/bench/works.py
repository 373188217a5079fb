"""All works by name, in the order in which they are done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from wrkfs.bench import large, small, tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.bench.place import Place


class Caches(Enum):
    """What is done with caches just before."""

    AS_THEY_ARE = "as they are"
    COLD = "dropped"
    WARM = "filled by a pass"


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table."""

    name: str
    unit: str
    do: Callable[[Place], int]
    """What is timed; tells how many units were done."""
    have: Callable[[Place], None] | None = None
    """Makes what it needs and is not there; not timed."""
    caches: Caches = Caches.AS_THEY_ARE


OPS, FILES, MIB = "ops/s", "files/s", "MiB/s"

ALL = (
    Work("create", OPS, small.create),
    Work("create_write_4k", OPS, small.create_write_4k),
    Work("stat_cold", OPS, small.stat, small.have_small, Caches.COLD),
    Work("stat_warm", OPS, small.stat_again, small.have_small, Caches.WARM),
    Work("open_read_4k_cold", OPS, small.open_read, small.have_small, Caches.COLD),
    Work("open_read_4k_warm", OPS, small.open_read_again, small.have_small, Caches.WARM),
    Work("readdir_1000", "entries/s", small.readdir, small.have_thousand, Caches.COLD),
    Work("rename", OPS, small.rename, small.have_empty),
    Work("unlink", OPS, small.unlink, small.have_small),
    Work("mkdir", OPS, small.mkdir),
    Work("rmdir", OPS, small.rmdir, small.have_folders),
    Work("untar", FILES, tools.untar),
    Work("rm_rf", FILES, tools.rm_rf, tools.have_tree),
    Work("git_clone_status", FILES, tools.git_clone_status),
    Work("pip_install", FILES, tools.pip_install),
    Work("seq_write_fsync", MIB, large.seq_write_fsync),
    Work("seq_read_cold", MIB, large.seq_read, large.have_large, Caches.COLD),
    Work("seq_read_warm", MIB, large.seq_read, large.have_large, Caches.WARM),
    Work("rand_write_fsync_4k", OPS, large.rand_write_fsync_4k, large.have_large),
)

BY_NAME = {work.name: work for work in ALL}
