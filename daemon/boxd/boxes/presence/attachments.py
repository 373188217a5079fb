"""Attachments: the holds that keep boxes awake, one per SSH channel, exec, terminal or proxied
request.

Critical section: none. No method awaits, so each is atomic on the event loop. The lifecycle reads
`count` under the box's lock when it decides.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, Forbidden, InvalidKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.state.feed import Feed

ENDED_KEPT = 10_000
"""Ids of revoked keys to remember, for requests that looked a key up just before its revocation."""

PROXIED = "proxy"
"""Reason of the hold of a proxied request. A polling program may send such requests."""
DELEGATED = "delegate"
"""Reason of the hold of a delegated task: the memory of its box may contain the token of an
agent.
"""


@dataclass(eq=False, slots=True)
class Hold:
    """One attachment, from the moment a caller asks for it.

    `owner` is the owner of the caller's credential. `box_id` is empty and `workspace` None until
    the box is known. `end` ends the attachment with an error, even while the daemon still creates
    the box. `loss` is the event that ended the box during the hold; empty if there was none.
    """

    owner: str
    box_id: str
    why: str
    key_id: str | None
    end: Callable[[BoxdError], None] | None = field(default=None)
    loss: str = ""
    workspace: str | None = field(default=None)


class Attachments:
    """All holds of this daemon, in memory: a restart ends the streams they belong to."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._holds: dict[str, set[Hold]] = {}
        self._revocable: set[Hold] = set()
        self._ended: OrderedDict[str, str] = OrderedDict()

    def add(self, hold: Hold) -> None:
        """Count a hold."""
        self._holds.setdefault(hold.box_id, set()).add(hold)
        self._feed.fleet(hold.owner, hold.workspace)

    def remove(self, hold: Hold) -> int:
        """Stop counting a hold. Returns the number of holds left.

        No error if it was not counted.
        """
        holds = self._holds.get(hold.box_id)
        if holds is None:
            return 0
        holds.discard(hold)
        if not holds:
            del self._holds[hold.box_id]
        self._feed.fleet(hold.owner, hold.workspace)
        return len(holds)

    def count(self, box_id: str) -> int:
        """Return the number of holds of the box."""
        return len(self._holds.get(box_id, ()))

    @property
    def total(self) -> int:
        """Number of all holds."""
        return sum(map(len, self._holds.values()))

    def held(self) -> set[str]:
        """Return the ids of the boxes with a hold."""
        return set(self._holds)

    def storable(self, box_id: str) -> bool:
        """Return whether the memory of the box may go to a disk if it is suspended while held."""
        return all(hold.why != DELEGATED for hold in self._holds.get(box_id, ()))

    def why(self, box_id: str) -> dict[str, int]:
        """Return the number of holds of the box by reason."""
        holds = self._holds.get(box_id)
        return dict(sorted(Counter(hold.why for hold in holds).items())) if holds else {}

    def tell_lost(self, box_id: str, why: str) -> None:
        """Record in all holds of the box why its connection is about to end."""
        for hold in self._holds.get(box_id, ()):
            hold.loss = why

    def expect(self, hold: Hold) -> None:
        """Register a hold, so that it can be ended even before it has a box.

        Raises InvalidKey if its key was revoked since it was looked up.
        """
        if hold.key_id is not None and hold.key_id in self._ended:
            raise InvalidKey(self._ended[hold.key_id])
        self._revocable.add(hold)

    def finish(self, hold: Hold) -> None:
        """Remove a hold from the register. No error if it was not registered."""
        self._revocable.discard(hold)

    def end_key(self, key_id: str, text: str) -> int:
        """End all current and future holds of an API key or share with the message `text`.

        Returns the number of holds that ended.
        """
        self._ended[key_id] = text
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        return self._end(lambda hold: hold.key_id == key_id, lambda: InvalidKey(text))

    def end_box(self, box_id: str, text: str) -> int:
        """End all holds of a box with the message `text`. Returns their number."""
        return self._end(lambda hold: hold.box_id == box_id, lambda: Forbidden(text))

    def end_owner(self, owner: str, text: str) -> int:
        """End all holds of an owner with the message `text`. Returns their number."""
        return self._end(lambda hold: hold.owner == owner, lambda: Forbidden(text))

    def _end(self, matches: Callable[[Hold], bool], reason: Callable[[], BoxdError]) -> int:
        ended = 0
        for hold in list(self._revocable):
            if matches(hold) and hold.end is not None:
                hold.end(reason())
                ended += 1
        return ended
