"""Signals that a program inherits as ignored."""

from __future__ import annotations

import signal


def restore_ignored(*, keep: frozenset[signal.Signals] = frozenset()) -> None:
    """Restore the default action of every ignored signal except those in `keep`.

    A program inherits ignored signals. A shell starts background services with SIGINT and SIGQUIT
    ignored. So Ctrl-C and Ctrl-\\ would do nothing in a terminal of a box.
    """
    for number in signal.valid_signals():
        if number not in keep and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
