"""SIGHUP means one of two things: the terminal has closed, or the settings must be read again.

The kernel sends SIGHUP to the programs of a terminal that closes. Operators and log rotation also
send it to daemons; such a signal must not stop the daemon.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def translator() -> Callable[[], signal.Signals]:
    """Return a function that tells what a SIGHUP means.

    It returns SIGTERM if the process has lost its current terminal, else SIGHUP.
    """
    had_terminal = _has_terminal()

    def meaning() -> signal.Signals:
        if had_terminal and not _has_terminal():
            return signal.SIGTERM
        return signal.SIGHUP

    return meaning


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal that has not hung up."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
