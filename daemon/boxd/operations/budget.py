"""How much an owner has under way at once, of what goes on in this process. No method awaits."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class AtOnce:
    """Counts one kind of work by owner."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def one_more(self, owner: str, check: Callable[[int], None]) -> Iterator[None]:
        """Counts one while the context lasts, if `check` lets it: it gets how many there are."""
        check(self._under_way[owner])
        self._under_way[owner] += 1
        try:
            yield
        finally:
            self._under_way[owner] -= 1
            if not self._under_way[owner]:
                del self._under_way[owner]
