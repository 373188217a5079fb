"""Programs that inherit ignored signals, like background programs of a shell."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def ignoring(*numbers: signal.Signals) -> Iterator[None]:
    """Ignore signals in this process and in the programs that it starts, within the context."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignored_signals(status: bytes) -> set[int]:
    """Return the ignored signals in the line `SigIgn` of /proc/PID/status.

    The C library reserves signals 32 and 33. No program can change them through it, and some
    programs that start tests ignore them.
    """
    mask = int(status.split()[1], 16)
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}
