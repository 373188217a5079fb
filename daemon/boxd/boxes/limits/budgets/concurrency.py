"""The number of tasks that an owner runs at the same time. A task over the limit is rejected.

No method awaits.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ConcurrencyCount:
    """Counts the running tasks of each owner, for one kind of task."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()

    @contextmanager
    def one_more(self, owner: str, check: Callable[[int], None]) -> Iterator[None]:
        """Count one more task while the context lasts.

        `check` gets the number of tasks that run already, and raises to reject this one.
        """
        check(self._running[owner])
        self._running[owner] += 1
        try:
            yield
        finally:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]
