"""Per-box locks, and the lock that guards host-wide totals.

Lock order: a slot of `standstills`, then the lock of a box, then the lock of the totals. A task
that waits for a slot therefore blocks no box.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from boxd.model.box import Box


STANDSTILLS_PER_CPU = 2
"""Boxes that may be frozen at the same time while their state is written. More would only freeze
each of them for longer.
"""


class Locks:
    """One lock per box name, and one for all boxes.

    A lock exists while a task holds it or waits for it.
    """

    def __init__(self) -> None:
        self.standstills = asyncio.Semaphore(STANDSTILLS_PER_CPU * len(os.sched_getaffinity(0)))
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def box(self, box: Box) -> asyncio.Lock:
        """Return the lock of a box.

        It belongs to the name, so an older box of that name shares it.
        """
        return self._lock(box.owner, box.ref)

    def name(self, owner: str, workspace: str | None, name: str) -> asyncio.Lock:
        """Return the lock of a name, whether a box of that name exists or not."""
        return self._lock(owner, name if workspace is None else f"{workspace}/{name}")

    def sums(self) -> asyncio.Lock:
        """Return the lock for host-wide totals: the check of limits and the row that it admits."""
        return self._lock("", "")

    def _lock(self, owner: str, ref: str) -> asyncio.Lock:
        return self._locks.setdefault((owner, ref), asyncio.Lock())
