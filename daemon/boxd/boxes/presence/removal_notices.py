"""Unused boxes that the service is going to remove, and the reports about them at logins.

A login reports the boxes that the service removes within a day. Several logins in a row do not
repeat a report: the same removal is reported again only when half of the time has passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from boxd.clock import Clock
    from boxd.model.view import BoxView

SOON = timedelta(days=1)
"""Later removals are not reported."""
MAX_OWNERS = 10_000
"""Owners whose reports are stored. The one that got the oldest report can get it again."""


@dataclass(frozen=True, slots=True)
class UnusedBox:
    """A box that the service removes after `remaining`, unless someone uses or keeps it."""

    id: str
    ref: str
    remaining: timedelta


def unused_boxes(boxes: Iterable[BoxView], now: datetime) -> list[UnusedBox]:
    """Return the boxes that the service removes soon because nobody uses them, soonest first.

    A running box that is suspended first does not count. Neither does a box that its deadline ends,
    because its owner chose the time.
    """
    unused = [
        UnusedBox(box.id, box.ref, box.removal.at - now)
        for box in boxes
        if box.removal is not None
        and box.removal.why == "unused"
        and box.next is not None
        and box.next.act == "removed"
        and box.removal.at - now <= SOON
    ]
    return sorted(unused, key=lambda box: (box.remaining, box.ref))


class RemovalNotices:
    """Decides which unused boxes to report to an owner at a login.

    Critical section: none. No method awaits. The reports are only in memory: after a restart of the
    service the next login gets them again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[str, dict[str, timedelta]] = {}
        """The remaining time at the last report, by owner and box id."""

    def news(self, owner: str, boxes: Iterable[BoxView]) -> list[UnusedBox]:
        """Return the unused boxes of the owner to report now, given all boxes of the owner."""
        before = self._reported.pop(owner, {})
        reported: dict[str, timedelta] = {}
        news = []
        for box in unused_boxes(boxes, self._clock.now()):
            last = before.get(box.id)
            if last is None or box.remaining > last or box.remaining <= last / 2:
                news.append(box)
                last = box.remaining
            reported[box.id] = last
        if reported:
            self._reported[owner] = reported
        while len(self._reported) > MAX_OWNERS:
            del self._reported[next(iter(self._reported))]
        return news
