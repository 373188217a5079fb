"""Upper limits of any mount: libfuse's C example on the local disk, and the local disk itself."""

from __future__ import annotations

import resource
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.mounted import LAST_WORDS, Mounted, NotHere
from wrkfs.bench.place import WorkloadFailed
from wrkfs.bench.target import Directory
from wrkfs.bench.workloads import COLD

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path("/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c")

DESCRIPTORS = 1 << 17
"""Limit of open files of the passthrough, if the machine allows it.

The passthrough opens each file that the kernel knows.
"""


class Passthrough(Mounted):
    """libfuse's `passthrough_ll`: the cost of FUSE alone.

    A remount drops the caches of the mount, but not those of the disk below.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "passthrough")
        self._program = directory / "passthrough_ll"
        self._below = directory / "passthrough-below"
        self._below.mkdir()
        if not SOURCE.exists():
            raise NotHere(f"no {SOURCE.name}; install libfuse3-dev with its examples")
        found = ["pkg-config", "--cflags", "--libs", "fuse3"]
        flags = shlex.split(
            subprocess.run(found, capture_output=True, text=True, check=True).stdout
        )
        done = subprocess.run(
            ["gcc", "-O2", "-o", str(self._program), str(SOURCE), *flags],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise NotHere(f"gcc: {done.stderr.decode(errors='replace')[-LAST_WORDS:]}")

    def command(self) -> Sequence[str]:
        """Return the command of the mount."""
        options = f"source={self._below},cache=always,allow_other"
        # A lower hard limit cannot be raised without a privilege that containers lack.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        allowed = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        return [
            "prlimit",
            f"--nofile={allowed}",
            str(self._program),
            "-f",
            "-o",
            options,
            str(self.path),
        ]


class Disk(Directory):
    """A directory of the local disk."""

    skips = COLD
    """Works with cold caches. Dropping the disk's caches would affect the stores of all peers."""

    def __init__(self, directory: Path) -> None:
        path = directory / "disk"
        path.mkdir()
        super().__init__(path)
        self.name = "disk"

    def mount(self) -> None:
        """Do nothing: the directory exists."""

    def unmount(self) -> None:
        """Do nothing: the directory stays."""

    def drop_caches(self) -> None:
        """Raise WorkloadFailed, because its caches are those of the stores."""
        raise WorkloadFailed("the caches of the disk are those of the stores")
