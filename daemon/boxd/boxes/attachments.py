"""Who holds a box awake: one hold per SSH channel, exec, terminal or proxied request.

No method awaits, so each is atomic on the event loop; the lifecycle reads `count` under the box's
lock when it decides.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, Forbidden, InvalidKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.feed import Feed
    from boxd.model.box import Box

ENDED_KEPT = 10_000
"""Ids of ended keys that are remembered, for who had looked one up just before it was revoked."""

DELEGATED = "delegate"
"""Why a task holds its box: the token of an agent may be in memory there."""


@dataclass(eq=False, slots=True)
class Hold:
    """One attachment, from the moment in which it is asked for; `owner` is who asked. `end` is
    called with the reason when it may not go on, also while its box is being made. `begun` is
    called with the box when it is being made or woken for it.

    `box_id` is empty until the box is known; `workspace` is the box's from then on. `lost` tells,
    once it is known, what became of the box while it was held.
    """

    owner: str
    box_id: str
    why: str
    key_id: str | None
    end: Callable[[BoxdError], None] | None = field(default=None)
    lost: str = ""
    begun: Callable[[Box], None] | None = field(default=None)
    workspace: str | None = field(default=None)


class Attachments:
    """All holds of this daemon. They live in memory: a restart ends the streams they stand for."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._holds: dict[str, set[Hold]] = {}
        self._revocable: set[Hold] = set()
        self._ended: OrderedDict[str, str] = OrderedDict()

    def add(self, hold: Hold) -> None:
        """Counts one more."""
        self._holds.setdefault(hold.box_id, set()).add(hold)
        self._feed.fleet(hold.owner, hold.workspace)

    def remove(self, hold: Hold) -> int:
        """Counts one less; returns how many hold the box now. No error if it was not counted."""
        holds = self._holds.get(hold.box_id)
        if holds is None:
            return 0
        holds.discard(hold)
        if not holds:
            del self._holds[hold.box_id]
        self._feed.fleet(hold.owner, hold.workspace)
        return len(holds)

    def count(self, box_id: str) -> int:
        """How many hold the box."""
        return len(self._holds.get(box_id, ()))

    def held(self) -> set[str]:
        """Ids of the boxes that something holds."""
        return set(self._holds)

    def storable(self, box_id: str) -> bool:
        """Whether the memory of the box may go to a disk, if it has to end while it is held."""
        return all(hold.why != DELEGATED for hold in self._holds.get(box_id, ()))

    def why(self, box_id: str) -> dict[str, int]:
        """How many hold the box for which reason, by reason."""
        holds = self._holds.get(box_id)
        return dict(sorted(Counter(hold.why for hold in holds).items())) if holds else {}

    def tell_lost(self, box_id: str, why: str) -> None:
        """Lets all who hold the box know why its connection is about to end."""
        for hold in self._holds.get(box_id, ()):
            hold.lost = why

    def expect(self, hold: Hold) -> None:
        """It may be ended from now on; it may not hold a box yet. InvalidKey when its key has been
        revoked since it was looked up."""
        if hold.key_id is not None and hold.key_id in self._ended:
            raise InvalidKey(self._ended[hold.key_id])
        self._revocable.add(hold)

    def finish(self, hold: Hold) -> None:
        """It is over. No error if it was not expected."""
        self._revocable.discard(hold)

    def end_key(self, key_id: str, text: str) -> int:
        """Ends everything that an API key or share started, which is told `text`, and what it would
        start from now on; returns how many that were."""
        self._ended[key_id] = text
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        return self._end(lambda hold: hold.key_id == key_id, lambda: InvalidKey(text))

    def end_box(self, box_id: str, text: str) -> int:
        """Ends everything that holds a box, which is told `text`; returns how many that were."""
        return self._end(lambda hold: hold.box_id == box_id, lambda: Forbidden(text))

    def end_owner(self, owner: str, text: str) -> int:
        """Ends everything of an owner, which is told `text`; returns how many that were."""
        return self._end(lambda hold: hold.owner == owner, lambda: Forbidden(text))

    def _end(self, chosen: Callable[[Hold], bool], reason: Callable[[], BoxdError]) -> int:
        ended = 0
        for hold in list(self._revocable):
            if chosen(hold) and hold.end is not None:
                hold.end(reason())
                ended += 1
        return ended
