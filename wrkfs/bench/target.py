"""What is measured: something with a path whose caches can be dropped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from wrkfs.bench.place import WorkFailed

DROP = Path("/proc/sys/vm/drop_caches")


class Target(Protocol):
    """A filesystem under measurement."""

    name: str
    path: Path
    skips: frozenset[str]
    """Works that make no sense for it."""

    def check(self) -> None:
        """WorkFailed unless it is there; else another filesystem below would be measured."""
        ...

    def cool(self) -> None:
        """Drops every cache that it can reach. WorkFailed, OSError."""
        ...


class Directory:
    """Somebody's directory. Of its caches only the kernel's can be dropped, and only by root."""

    skips: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.path = path
        self._device = path.stat().st_dev

    def check(self) -> None:
        """It is still on the same filesystem."""
        if self.path.stat().st_dev != self._device:
            raise WorkFailed(f"something else was mounted at {self.path}, or unmounted")

    def cool(self) -> None:
        """Pages, names and inodes of the whole machine; what a mount process keeps stays."""
        os.sync()
        try:
            DROP.write_text("3")
        except OSError as error:
            raise WorkFailed(f"caches cannot be dropped: {error.strerror}") from error
