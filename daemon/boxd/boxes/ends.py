"""Tells the feed when a canvas or a question is over by itself: nobody acts then, and who listens
would hear of it with the next change alone.

What ends is known in memory: from the store at the start, from who makes it afterwards. So the
database is asked once, not again and again, and one timer waits for the next end. The wall clock
decides, and it may be set: it is looked at again every now and then. No method awaits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from boxd.boxes.feed import Feed
    from boxd.clock import Clock
    from boxd.model.end import End, Passing

LOOK_EVERY_S = 30.0
SLACK = 64
"""Entries of the queue that may be over before it is made anew, beside as many as are not."""
Place: TypeAlias = "tuple[Passing, str, str | None, str]"


class Ends:
    """See the module. One that is told although what it is about has gone in another way harms
    nobody: who hears it looks for itself."""

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._known: dict[Place, datetime] = {}
        self._queue: list[tuple[datetime, int, Place]] = []
        """By moment; an entry of which `_known` says another moment, or none, means nothing."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self, ends: Iterable[End]) -> None:
        """Learns what was made before."""
        for end in ends:
            self.put(end)

    def close(self) -> None:
        """Tells nothing from now on."""
        self._closed = True
        self._known.clear()
        self._queue.clear()
        self._wait(None)

    def put(self, end: End) -> None:
        """Something ends then, and at no other moment that was said of it."""
        if self._closed:
            return
        place = (end.what, end.owner, end.workspace, end.id)
        self._known[place] = end.at
        heapq.heappush(self._queue, (end.at, next(self._numbers), place))
        self._tidy()
        if self._queue[0][0] == end.at:
            self._look()

    def drop(self, what: Passing, owner: str, workspace: str | None, name: str) -> None:
        """It does not end by itself any more."""
        self._known.pop((what, owner, workspace, name), None)
        self._tidy()

    def drop_all(self, owner: str, workspace: str | None) -> None:
        """Nothing of that workspace ends any more."""
        for place in [one for one in self._known if one[1:3] == (owner, workspace)]:
            del self._known[place]
        self._tidy()

    def _tidy(self) -> None:
        if len(self._queue) > 2 * len(self._known) + SLACK:
            self._queue = [one for one in self._queue if self._known.get(one[2]) == one[0]]
            heapq.heapify(self._queue)

    def _look(self) -> None:
        """Tells what is over, and waits for what comes next."""
        now = self._clock.now()
        while self._queue:
            at, _, place = self._queue[0]
            if self._known.get(place) == at:
                if at > now:
                    break
                del self._known[place]
                self._tell(*place)
            heapq.heappop(self._queue)
        self._wait((self._queue[0][0] - now).total_seconds() if self._queue else None)

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(seconds, LOOK_EVERY_S), self._look)

    def _tell(self, what: Passing, owner: str, workspace: str | None, name: str) -> None:
        if what == "canvas":
            self._feed.canvas(owner, workspace, name)
        else:
            self._feed.asks(owner, workspace)
