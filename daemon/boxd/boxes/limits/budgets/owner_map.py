"""One object for each owner that is active, and none for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class OwnerMap(Generic[T]):
    """Creates an owner's object at first use, and drops it with its last reference."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self.active: WeakValueDictionary[str, T] = WeakValueDictionary()

    def of(self, owner: str) -> T:
        """Return the owner's object; concurrent callers get the same one."""
        value = self.active.get(owner)
        if value is None:
            self.active[owner] = value = self._create()
        return value
