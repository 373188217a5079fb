"""What a Filesystem still reads of the past, so that garbage collection leaves it alone."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Holds:
    """Snapshots that are being read.

    A hold begins before the snapshot is taken: the objects that it shows stay until it ends.
    """

    def __init__(self) -> None:
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

    def oldest(self) -> float | None:
        """When the oldest hold began, by the monotonic clock; None without any."""
        return min(self._begun.values(), default=None)
