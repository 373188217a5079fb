"""Counts the calls and the resource use of a process, and writes them to a file on a signal."""

from __future__ import annotations

import functools
import json
import resource
import signal
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from types import FrameType

    Method: TypeAlias = Callable[..., Coroutine[object, object, object]]

ASK = signal.SIGUSR1
"""The signal on which a process writes its counters."""
USAGE = {
    "user_s": "ru_utime",
    "system_s": "ru_stime",
    "switches": "ru_nvcsw",
    "preemptions": "ru_nivcsw",
}
"""The resource use of all threads, by the field names of getrusage(2)."""


class Counters:
    """Calls by kind and name, with their durations, since the last `take`.

    A call counts when it ends.
    """

    def __init__(self) -> None:
        self._times: defaultdict[str, defaultdict[str, list[float]]] = _nothing()
        self._used = _usage()

    def around(self, kind: str, owner: type, method: str, name: str | None = None) -> None:
        """Count the calls of a method. Without `name`, the first argument is the name of a call."""
        call: Method = getattr(owner, method)

        @functools.wraps(call)
        async def counted(*args: object, **named: object) -> object:
            start = time.perf_counter()
            try:
                return await call(*args, **named)
            finally:
                took = time.perf_counter() - start
                self._times[kind][str(args[1]) if name is None else name].append(took)

        setattr(owner, method, counted)

    def take(self) -> dict[str, Any]:
        """Return and reset the counters.

        `calls` contains the microseconds of each call by kind and name, `used` the fields of USAGE.
        """
        times, self._times = self._times, _nothing()
        before, self._used = self._used, _usage()
        return {
            "calls": {
                kind: {name: [round(1e6 * one, 1) for one in each] for name, each in names.items()}
                for kind, names in times.items()
            },
            "used": {key: self._used[key] - before[key] for key in USAGE},
        }

    def hand_over(self, file: Path) -> None:
        """Write the counters to `file` on each ASK. The file is complete when it appears."""

        def answer(_number: int, _frame: FrameType | None) -> None:
            part = file.with_name(file.name + ".part")
            part.write_text(json.dumps(self.take()))
            part.rename(file)

        signal.signal(ASK, answer)


def _nothing() -> defaultdict[str, defaultdict[str, list[float]]]:
    return defaultdict(lambda: defaultdict(list))


def _usage() -> dict[str, float]:
    found = resource.getrusage(resource.RUSAGE_SELF)
    return {key: getattr(found, field) for key, field in USAGE.items()}
