"""Ends commands silently when the reader of their output has exited, as in `ls | head`.

`wrkfs.unread` does the same for the drive, which must not import this package.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STATUS = 141
"""Exit status, as a shell reports a program that SIGPIPE ended. The signal itself stays ignored: a
lost connection must not end a command."""


def quietly(command: Callable[[], int]) -> int:
    """Run a command line, flush its output and return its exit status.

    The status is STATUS if the reader of the output has exited.
    """
    try:
        try:
            return command()
        finally:
            print(end="", flush=True)  # does nothing if there is no stdout at all
    except BrokenPipeError:
        # The interpreter flushes the rest when it exits. That flush must not fail again.
        unread = os.open(os.devnull, os.O_WRONLY)
        os.dup2(unread, sys.stdout.fileno())
        os.close(unread)
        return STATUS
