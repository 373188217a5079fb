"""Ends a command silently when the reader of its output closes the pipe, as in `ls | head`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STATUS = 141
"""Exit status of a program that SIGPIPE ended, as a shell reports it. The process itself ignores
SIGPIPE: a lost connection to the database must not end a command."""


def quietly(command: Callable[[], int]) -> int:
    """Run a command, flush its output, and return the exit status."""
    try:
        try:
            return command()
        finally:
            print(end="", flush=True)  # does nothing when the process has no stdout
    except BrokenPipeError:
        # The interpreter flushes stdout again at exit. That flush must not fail.
        unread = os.open(os.devnull, os.O_WRONLY)
        os.dup2(unread, sys.stdout.fileno())
        os.close(unread)
        return STATUS
