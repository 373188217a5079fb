"""Stops mounts, and continues them at the latest at the end of the test."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.mounts.drive import until

if TYPE_CHECKING:
    from tests.harness.mounts.drive import MountProcess


class Frozen:
    """The stopped mounts."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def stop(self, mount: MountProcess) -> None:
        """Send SIGSTOP; return when the process has stopped."""
        self._pids.add(mount.pid)
        os.kill(mount.pid, signal.SIGSTOP)
        status = Path(f"/proc/{mount.pid}/stat")
        until(lambda: status.read_text().rpartition(")")[2].split()[0] in "Tt")

    def go_on(self, mount: MountProcess) -> None:
        """Send SIGCONT."""
        os.kill(mount.pid, signal.SIGCONT)
        self._pids.discard(mount.pid)

    def close(self) -> None:
        """Continue all stopped mounts."""
        while self._pids:
            with suppress(ProcessLookupError):
                os.kill(self._pids.pop(), signal.SIGCONT)
