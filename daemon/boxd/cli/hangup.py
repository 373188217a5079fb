"""What SIGHUP means: the terminal is gone, or somebody wants settings read anew.

The kernel sends it to the programs of a terminal that closes. Operators and log rotation send it to
daemons by habit, and mean no end by it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def handler(stop: Callable[[], None], reread: Callable[[], None]) -> Callable[[], None]:
    """What to do at SIGHUP: `stop` if the terminal of now is gone then, `reread` otherwise."""
    had_terminal = _has_terminal()

    def hang_up() -> None:
        if had_terminal and not _has_terminal():
            stop()
        else:
            reread()

    return hang_up


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal; one that has hung up is none."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
