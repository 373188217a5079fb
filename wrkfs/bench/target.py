"""Targets of benchmarks: filesystems with a path whose caches can be dropped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from wrkfs.bench.place import WorkloadFailed

DROP = Path("/proc/sys/vm/drop_caches")


class Target(Protocol):
    """A filesystem to measure."""

    name: str
    path: Path
    skips: frozenset[str]
    """Names of workloads that do not apply to it."""

    def check(self) -> None:
        """Raise WorkloadFailed if the target is gone: another filesystem may be at its path."""
        ...

    def drop_caches(self) -> None:
        """Drop as many caches as possible. Raises WorkloadFailed, OSError."""
        ...


class Directory:
    """Any directory. Only the kernel's caches can be dropped, and only by root."""

    skips: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.path = path
        self._device = path.stat().st_dev

    def check(self) -> None:
        """Raise WorkloadFailed if the directory is now on another filesystem."""
        if self.path.stat().st_dev != self._device:
            raise WorkloadFailed(f"the filesystem at {self.path} was unmounted or replaced")

    def drop_caches(self) -> None:
        """Drop the machine's caches of pages, names and inodes. Mount processes keep theirs."""
        os.sync()
        try:
            DROP.write_text("3")
        except OSError as error:
            raise WorkloadFailed(f"cannot drop caches: {error.strerror}; run as root") from error
