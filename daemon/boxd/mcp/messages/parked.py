"""Answers that no connection is reading: kept in memory for clients that resume their streams.

One owner's kept answers share one bound over all sessions. Beyond it the oldest answer goes first.

Critical sections: none; nothing awaits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from boxd.mcp.messages.replies import Replies

BYTES = 16 * 1024 * 1024
"""Of one owner."""


class Parked:
    """One owner's answers, the oldest first."""

    def __init__(self) -> None:
        self.size = 0
        self._sizes: dict[Replies, int] = {}

    def add(self, replies: Replies) -> None:
        """Keeps an answer; gives up others, or this one, until all fit into BYTES."""
        self.remove(replies)
        self._sizes[replies] = replies.size
        self.size += replies.size
        while self.size > BYTES:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            oldest.give_up()

    def remove(self, replies: Replies) -> None:
        """Takes one out; no error if it is not kept here."""
        self.size -= self._sizes.pop(replies, 0)


class ParkedAnswers:
    """The kept answers of all owners who have sessions."""

    def __init__(self) -> None:
        self._owners: WeakValueDictionary[str, Parked] = WeakValueDictionary()

    def of(self, owner: str) -> Parked:
        """The owner's, the same for all sessions that hold it at a time."""
        parked = self._owners.get(owner)
        if parked is None:
            self._owners[owner] = parked = Parked()
        return parked
