"""What a Filesystem still reads of the past, so that garbage collection leaves it alone."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


LONGEST = 24 * 3600.0
"""Seconds after which a hold keeps nothing any more: one reader that never ends must not keep a
volume from being collected."""


class Holds:
    """Snapshots that are being read.

    A hold begins before the snapshot is taken: the objects that it shows stay until it ends, or is
    older than `longest` seconds.
    """

    def __init__(self, longest: float = LONGEST) -> None:
        self.longest = longest
        self._begun: dict[object, float] = {}

    def begin(self) -> object:
        """Begins a hold; what `end` takes."""
        token = object()
        self._begun[token] = time.monotonic()
        return token

    def end(self, token: object) -> None:
        """Ends a hold. Idempotent."""
        self._begun.pop(token, None)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A hold for the time of a block."""
        token = self.begin()
        try:
            yield
        finally:
            self.end(token)

    def expired(self, token: object) -> bool:
        """Whether a hold that has not ended is too old to keep anything."""
        begun = self._begun.get(token)
        return begun is not None and not self._keeps(begun)

    def oldest(self) -> float | None:
        """When the oldest hold that keeps something began (monotonic clock); None without any."""
        return min(filter(self._keeps, self._begun.values()), default=None)

    def _keeps(self, begun: float) -> bool:
        return time.monotonic() - begun < self.longest
