"""The box index: the names and ids of all boxes of all owners, in memory.

It answers callers that must not cost a query to the store, such as connections without a key.

Critical section: none; no method awaits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.model.box import Box
    from boxd.names.reference import Reference


class BoxIndex:
    """Names and ids of all boxes except confidential ones, which the index never reveals."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._ids: list[str] = []
        """Sorted, so that a binary search finds a prefix."""

    def fill(self, boxes: Iterable[Box]) -> None:
        """Add the boxes that existed at startup."""
        for box in boxes:
            self.put(box)

    def put(self, box: Box) -> None:
        """Add a box. Does nothing for a known one, because the name of a box never changes."""
        if box.confidential:
            self.forget(box)
            return
        box_ids = self._names.setdefault(box.name, set())
        if box.id not in box_ids:
            box_ids.add(box.id)
            insort(self._ids, box.id)

    def forget(self, box: Box) -> None:
        """Remove a box. No error if it is not in the index."""
        box_ids = self._names.get(box.name, set())
        if box.id not in box_ids:
            return
        box_ids.remove(box.id)
        if not box_ids:
            del self._names[box.name]
        del self._ids[bisect_left(self._ids, box.id)]

    def has(self, reference: Reference) -> bool:
        """Return whether the reference of any owner may mean a box.

        A name without a workspace matches in every workspace, because for a key that is confined to
        a workspace it means that workspace. Any prefix of an id matches.
        """
        if reference.workspace is None and reference.name in self._names:
            return True
        prefix = reference.id_prefix
        if prefix is None:
            return False
        place = bisect_left(self._ids, prefix)
        return place < len(self._ids) and self._ids[place].startswith(prefix)
