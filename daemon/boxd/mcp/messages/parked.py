"""Answers that no connection reads, kept in memory for clients that resume their streams.

The parked answers of one owner, over all sessions, share one limit. Beyond the limit, the service
drops the oldest answer.

Critical sections: none. No method awaits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxd.mcp.messages.replies import Replies

MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of the parked answers of one owner, in bytes."""


class ParkedAnswers:
    """The parked answers of one owner, oldest first: one object for all sessions of the owner."""

    def __init__(self) -> None:
        self.size = 0
        self._sizes: dict[Replies, int] = {}

    def add(self, replies: Replies) -> None:
        """Park an answer. Drop the oldest answers, or this one, until all fit into MAX_BYTES."""
        self.remove(replies)
        self._sizes[replies] = replies.size
        self.size += replies.size
        while self.size > MAX_BYTES:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            oldest.drop_answer()

    def remove(self, replies: Replies) -> None:
        """Remove an answer. No error if it is not parked here."""
        self.size -= self._sizes.pop(replies, 0)
