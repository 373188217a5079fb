"""Snapshots that a Filesystem still reads: garbage collection must not delete their objects."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_AGE = 24 * 3600.0
"""Maximum number of seconds for which a hold is in force: a reader that never ends must not block
garbage collection forever."""


class Holds:
    """Holds on snapshots.

    A hold begins before the snapshot is read. The objects of the snapshot stay until the hold ends,
    or is `max_age` seconds old.
    """

    def __init__(self, max_age: float = MAX_AGE) -> None:
        self.max_age = max_age
        self._begin_times: dict[object, float] = {}

    def begin(self) -> object:
        """Begin a hold; return the token for `end`."""
        token = object()
        self._begin_times[token] = time.monotonic()
        return token

    def end(self, token: object) -> None:
        """End a hold. Idempotent."""
        self._begin_times.pop(token, None)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Return a context that holds snapshots which are read inside it."""
        token = self.begin()
        try:
            yield
        finally:
            self.end(token)

    def expired(self, token: object) -> bool:
        """Return True if a hold that has not ended is older than `max_age`."""
        begin_time = self._begin_times.get(token)
        return begin_time is not None and not self._in_force(begin_time)

    def oldest(self) -> float | None:
        """Return the start (monotonic clock) of the oldest hold in force; None if there is none."""
        return min(filter(self._in_force, self._begin_times.values()), default=None)

    def _in_force(self, begin_time: float) -> bool:
        return time.monotonic() - begin_time < self.max_age
