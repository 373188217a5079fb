"""The processes that the first process of the service forks."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SET_PDEATHSIG, _SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)

FAILED = 70
"""Exit status of a process that ended with an unexpected error."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""


def fork(name: str, main: Callable[[], int]) -> int:
    """Run `main` in a new process, which ends with this one; return its pid.

    Tools such as `ps -o comm` show the name, of at most 15 characters.

    The new process has an own session, so it receives no signals of a terminal. SIGHUP has no
    effect on it, other signals have their default effect, and none is blocked. The caller must have
    one thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(FAILED)  # the parent has ended before the call
        os.setsid()
        _libc.prctl(_SET_NAME, name.encode(), 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Until there are settings to read again. Programs that this process starts do not inherit a
        # handler, but they would inherit SIG_IGN.
        signal.signal(signal.SIGHUP, _do_nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        status = main()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BaseException:  # a copy of the parent's stack must not run on
        _log.exception("a process of the service failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a closed terminal
                stream.flush()
        os._exit(status)


def _do_nothing(number: int, frame: object) -> None:
    del number, frame


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends. Raises OSError."""
    if _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
