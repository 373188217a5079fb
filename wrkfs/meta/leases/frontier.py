"""What read-ahead knows about a reader: the directories that come next, and its credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wrkfs.types import Ino

FRONTIER = 2048
"""Maximum number of remembered directories; those farthest from the reader leave first."""


class Frontier:
    """Directories that a reader has not visited yet, in the order of a depth-first walk."""

    def __init__(self, most: int = FRONTIER) -> None:
        self._most = most
        self._order: list[Ino] = []
        self._members: set[Ino] = set()

    def __contains__(self, directory: Ino) -> bool:
        return directory in self._members

    def __len__(self) -> int:
        return len(self._order)

    def following(self, directory: Ino) -> list[Ino]:
        """Return the directories that come after this one; all of them if it is not a member."""
        if directory not in self._members:
            return self._order[:]
        return self._order[self._order.index(directory) + 1 :]

    def replace(self, directory: Ino, children: Iterable[Ino]) -> None:
        """Replace a visited directory by its subdirectories; it may be missing."""
        position = 0
        if directory in self._members:
            position = self._order.index(directory)
            del self._order[position]
            self._members.discard(directory)
        fresh = [child for child in children if child not in self._members]
        self._order[position:position] = fresh
        self._members.update(fresh)
        for distant in self._order[self._most :]:
            self._members.discard(distant)
        del self._order[self._most :]

    def append(self, directory: Ino) -> None:
        """Add a directory at the end, unless it is a member or there is no room."""
        if directory not in self._members and len(self._order) < self._most:
            self._order.append(directory)
            self._members.add(directory)

    def discard(self, directory: Ino) -> None:
        """Remove a directory, if it is a member."""
        self.replace(directory, ())


class Credit:
    """How much may be read ahead. Each use of something that was read ahead pays for more."""

    def __init__(self, start: int, most: int) -> None:
        self.left = start
        self._most = most

    def earn(self, amount: int) -> None:
        """Add an amount, up to the maximum."""
        self.left = min(self._most, self.left + amount)

    def spend(self, amount: int) -> None:
        """Subtract an amount, down to 0."""
        self.left = max(0, self.left - amount)

    def halve(self) -> None:
        """Reduce the credit: what was read ahead was lost before its use."""
        self.left //= 2
