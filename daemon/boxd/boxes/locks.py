"""Who may decide on a box, or on what all boxes take together.

A box's lock is taken before the one of all, never the other way round.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from boxd.model.box import Box


class Locks:
    """One lock per box name and one for all; a lock lives while somebody has or wants it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def box(self, box: Box) -> asyncio.Lock:
        """The lock of a box: of its name, so that an older box of the name shares it."""
        return self._lock(box.owner, box.ref)

    def name(self, owner: str, workspace: str | None, name: str) -> asyncio.Lock:
        """The lock of a box that may not be there."""
        return self._lock(owner, name if workspace is None else f"{workspace}/{name}")

    def sums(self) -> asyncio.Lock:
        """The lock of what boxes take together: the check of limits and the row it allows."""
        return self._lock("", "")

    def _lock(self, owner: str, ref: str) -> asyncio.Lock:
        return self._locks.setdefault((owner, ref), asyncio.Lock())
