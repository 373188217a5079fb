"""Kills a process that asyncio started, without taking its exit status."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def kill(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to a process. Does nothing if it has ended.

    Use this function instead of `process.kill()`, which in CPython 3.11 first polls the process. If
    the process has just ended, this poll takes its exit status. Then asyncio logs "Unknown child
    process" and reports the exit status 255.
    """
    # asyncio may have reaped the process some microseconds ago. The kernel reuses a process number
    # only after all others.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
