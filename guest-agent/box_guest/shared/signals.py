"""Signals that a program inherits as ignored."""

from __future__ import annotations

import signal


def restore_ignored(*, keep: frozenset[signal.Signals] = frozenset()) -> None:
    """Give every ignored signal but those in `keep` its default action.

    A program inherits ignored signals. A service that a shell started in the background ignores
    SIGINT and SIGQUIT, so Ctrl-C and Ctrl-\\ would do nothing in a terminal of a box.
    """
    for number in signal.valid_signals():
        if number not in keep and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
