"""Runs our mount process and records each request.

Usage: `python -m benchmarks.drive.waits FILE ARGUMENT...`. The arguments are those of
`box_guest.mount`. FILE receives a line of JSON per request: its name, the calling process, its
start and end (seconds of CLOCK_MONOTONIC), and its waits (`Waits`). Requests of a directory
listing have no process. The recall of a lease has its own line.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

import pyfuse3

from box_guest.mount.__main__ import main
from box_guest.mount.kernel import Kernel
from box_guest.mount.operations import Operations
from wrkfs.meta.postgres.links import Link
from wrkfs.meta.postgres.sessions import MountSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    Method: TypeAlias = Callable[..., Coroutine[object, object, object]]

Waits: TypeAlias = defaultdict[str, float]
"""Seconds by cause.

`database NAME` is the time of a statement's round trips. `change NAME` is the time of a change,
including its retries while other sessions return their leases.
"""

_waits: contextvars.ContextVar[Waits | None] = contextvars.ContextVar("waits", default=None)


def record(lines: TextIO) -> None:
    """Install timers around the methods of the mount process."""

    def timed(owner: type, method: str, name: str) -> None:
        call: Method = getattr(owner, method)

        @functools.wraps(call)
        async def request(*args: object, **named: object) -> object:
            waits: Waits = defaultdict(float)
            token = _waits.set(waits)
            began = time.monotonic()
            try:
                return await call(*args, **named)
            finally:
                _waits.reset(token)
                pids = [arg.pid for arg in args if isinstance(arg, pyfuse3.RequestContext)]
                line = {"name": name, "pid": pids[-1] if pids else 0, "began": began}
                print(json.dumps({**line, "ended": time.monotonic(), **waits}), file=lines)

        setattr(owner, method, request)

    for name in dir(pyfuse3.Operations):
        if asyncio.iscoroutinefunction(getattr(Operations, name)):
            timed(Operations, name, name)
    timed(Kernel, "drop", "(take back from the kernel)")
    _add(Link, "fetch", lambda args: f"database {args[1]}")
    _add(MountSession, "mutate", lambda args: f"change {args[1]}")


def _add(owner: type, method: str, cause: Callable[[tuple[object, ...]], str]) -> None:
    """Add the time of each call of a method to the waits of its request."""
    call: Method = getattr(owner, method)

    @functools.wraps(call)
    async def added(*args: object, **named: object) -> object:
        waits, began = _waits.get(), time.monotonic()
        try:
            return await call(*args, **named)
        finally:
            if waits is not None:
                waits[cause(args)] += time.monotonic() - began

    setattr(owner, method, added)


if __name__ == "__main__":
    with Path(sys.argv.pop(1)).open("w", buffering=1 << 16) as file:
        record(file)
        sys.exit(main())
