"""Which boxes there are, of all owners, in memory: for whom it must cost no question to the store.

Critical section: none; no method awaits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.model.box import Box
    from boxd.names.reference import Reference


class Census:
    """See the module. A confidential box is not counted: nothing of ours speaks for it."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._ids: list[str] = []
        """In order, so that a beginning is found by halving."""

    def fill(self, boxes: Iterable[Box]) -> None:
        """Counts boxes that were there before."""
        for box in boxes:
            self.put(box)

    def put(self, box: Box) -> None:
        """Counts a box, or knows it anew; its name never changes."""
        if box.confidential:
            self.forget(box)
            return
        holders = self._names.setdefault(box.name, set())
        if box.id not in holders:
            holders.add(box.id)
            insort(self._ids, box.id)

    def forget(self, box: Box) -> None:
        """The box is gone."""
        holders = self._names.get(box.name, set())
        if box.id not in holders:
            return
        holders.remove(box.id)
        if not holders:
            del self._names[box.name]
        del self._ids[bisect_left(self._ids, box.id)]

    def has(self, reference: Reference) -> bool:
        """Whether somebody's reference may mean a box: by its name, in any workspace when it names
        none, because a key confined to one means that; or by its id or the beginning of it.
        """
        if reference.workspace is None and reference.name in self._names:
            return True
        prefix = reference.id_prefix
        if prefix is None:
            return False
        place = bisect_left(self._ids, prefix)
        return place < len(self._ids) and self._ids[place].startswith(prefix)
