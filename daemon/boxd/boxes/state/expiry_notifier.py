"""The expiry notifier: publishes the expiry of canvases and questions to the change feed.

Without it, listeners would notice an expiry only with the next change.

The notifier keeps all expiry times in memory: it reads them from the store once at the start, and
callers add new ones. So it never polls the database. One timer waits for the next expiry. Expiry
times are wall-clock times, and the wall clock can be set. So the timer reads the clock at least
every LOOK_EVERY_S seconds.

Critical section: none; no method awaits.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from boxd.boxes.state.feed import Feed
    from boxd.clock import Clock
    from boxd.model.end import End, Passing

LOOK_EVERY_S = 30.0
SLACK = 64
"""The queue is rebuilt when its stale entries exceed the valid ones by this number."""
Place: TypeAlias = "tuple[Passing, str, str | None, str]"


class ExpiryNotifier:
    """Publishes expiries to the change feed.

    A notification about a removed canvas or question is harmless, because listeners read the
    current state.
    """

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._times: dict[Place, datetime] = {}
        self._queue: list[tuple[datetime, int, Place]] = []
        """Ordered by time. An entry is stale if `_times` has another time for it, or none."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self, ends: Iterable[End]) -> None:
        """Add the expiry times of the store."""
        for end in ends:
            self.put(end)

    def close(self) -> None:
        """Stop publishing, and forget all expiry times."""
        self._closed = True
        self._times.clear()
        self._queue.clear()
        self._wait(None)

    def put(self, end: End) -> None:
        """Set the expiry time of a canvas or a question; replaces an earlier one."""
        if self._closed:
            return
        place = (end.what, end.owner, end.workspace, end.id)
        self._times[place] = end.at
        heapq.heappush(self._queue, (end.at, next(self._numbers), place))
        self._tidy()
        if self._queue[0][0] == end.at:
            self._look()

    def drop(self, what: Passing, owner: str, workspace: str | None, name: str) -> None:
        """Remove the expiry time of a canvas or a question."""
        self._times.pop((what, owner, workspace, name), None)
        self._tidy()

    def drop_all(self, owner: str, workspace: str | None) -> None:
        """Remove all expiry times of a workspace."""
        for place in [place for place in self._times if place[1:3] == (owner, workspace)]:
            del self._times[place]
        self._tidy()

    def _tidy(self) -> None:
        if len(self._queue) > 2 * len(self._times) + SLACK:
            self._queue = [entry for entry in self._queue if self._times.get(entry[2]) == entry[0]]
            heapq.heapify(self._queue)

    def _look(self) -> None:
        """Publish due expiries, and wait for the next one."""
        now = self._clock.now()
        while self._queue:
            at, _, place = self._queue[0]
            if self._times.get(place) == at:
                if at > now:
                    break
                del self._times[place]
                self._publish(*place)
            heapq.heappop(self._queue)
        self._wait((self._queue[0][0] - now).total_seconds() if self._queue else None)

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(seconds, LOOK_EVERY_S), self._look)

    def _publish(self, what: Passing, owner: str, workspace: str | None, name: str) -> None:
        if what == "canvas":
            self._feed.canvas(owner, workspace, name)
        else:
            self._feed.asks(owner, workspace)
