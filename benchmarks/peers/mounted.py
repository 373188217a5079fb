"""A program that serves a mount in the foreground."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from wrkfs.bench.place import WorkloadFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOUNT_TIMEOUT = 60.0
UNMOUNT_TIMEOUT = 30.0
POLL = 0.02
LAST_WORDS = 300
"""Characters of a log that an error quotes."""
BARE = {"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
"""The environment of programs, without settings of a user."""


class NotHere(Exception):
    """A peer is not available on this machine."""


class Mounted:
    """Mounts at `path`. `drop_caches` remounts, so that neither kernel nor program has a cache.

    `before_mount` removes data that a program stores on disk between mounts.
    """

    name: str
    skips: frozenset[str] = frozenset()

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.path = directory / name
        self.path.mkdir()
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return the command. The program ends when it is unmounted."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return additional environment variables."""
        return {}

    def before_mount(self) -> None:
        """Remove caches on disk."""

    def mount(self) -> None:
        """Start the program and wait until it has mounted. Raises WorkloadFailed."""
        self.before_mount()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**BARE, **self.environment()},
            )
        deadline = time.monotonic() + MOUNT_TIMEOUT
        while not self.path.is_mount():
            if self._process.poll() is not None or time.monotonic() > deadline:
                words = self._log.read_text(errors="replace")[-LAST_WORDS:]
                raise WorkloadFailed(f"{self.name} does not mount: {words}")
            time.sleep(POLL)

    def end(self, _process: subprocess.Popen[bytes]) -> None:
        """Ask the program to write everything and to end."""
        # After a failed work, a file may still be open in the mount.
        if not self._umount() and self.is_there():
            self._umount("-l")

    def unmount(self) -> None:
        """End the program, and kill it after a time limit. Leaves no mount behind."""
        process, self._process = self._process, None
        if process is None:
            return
        self.end(process)
        try:
            process.wait(UNMOUNT_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self.is_there():
            self._umount("-l")

    def _umount(self, *words: str) -> bool:
        done = subprocess.run(["umount", *words, str(self.path)], check=False, capture_output=True)
        return done.returncode == 0

    def is_there(self) -> bool:
        """Return whether it is mounted, even if its program is dead."""
        with Path("/proc/self/mountinfo").open() as lines:
            return any(line.split()[4] == str(self.path) for line in lines)

    def check(self) -> None:
        """Raise WorkloadFailed if the mount does not work."""
        if self._process is None or self._process.poll() is not None or not self.is_there():
            raise WorkloadFailed(f"{self.name} is not mounted")

    def drop_caches(self) -> None:
        """Remount, to drop all caches."""
        self.unmount()
        self.mount()
