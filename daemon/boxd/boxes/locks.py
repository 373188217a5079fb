"""Who may decide on a box, or on what all boxes take together.

A slot of `standstills` is taken before a box's lock, and that before the one of all, never the
other way round: who waits for a slot keeps nobody from the box.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from boxd.model.box import Box


STANDSTILLS_PER_CPU = 2
"""Boxes that stand still at the same time while their state is written: more would only make each
of them stand longer."""


class Locks:
    """One lock per box name and one for all; a lock lives while somebody has or wants it."""

    def __init__(self) -> None:
        self.standstills = asyncio.Semaphore(STANDSTILLS_PER_CPU * len(os.sched_getaffinity(0)))
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
