"""Which unused boxes are reported at a login, and how often."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from boxd.boxes.presence import removal_notices
from boxd.boxes.presence.removal_notices import RemovalNotices, UnusedBox, unused_boxes
from boxd.model.view import BoxView, NextAct, Removal
from tests.harness.simulation.world import TurnedClock

if TYPE_CHECKING:
    import pytest

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
VIEW = BoxView(
    id="0" * 32,
    name="web",
    workspace=None,
    ref="web",
    image="debian",
    flavor="small",
    state="suspended",
    detail="",
    age_s=60.0,
    cpus=1.0,
    mem_mb=512,
    created=NOW,
    deadline=None,
    grace=None,
    attached=0,
)


def unused(ref: str, left: timedelta) -> BoxView:
    """A box that is removed after `left`, because nobody uses it."""
    end = NOW + left
    return replace(
        VIEW, id=ref, ref=ref, next=NextAct("removed", end), removal=Removal(end, "unused")
    )


def test_only_boxes_that_are_unused_now_are_reported_the_soonest_first() -> None:
    end = NOW + HOUR
    boxes = [
        VIEW,
        unused("late", 25 * HOUR),
        unused("day", 24 * HOUR),
        unused("b", 2 * HOUR),
        unused("a", 2 * HOUR),
        unused("soon", MINUTE),
        replace(unused("awake", HOUR), next=NextAct("suspended", NOW + MINUTE)),
        replace(unused("ends", HOUR), removal=Removal(end, "deadline")),
    ]
    assert [box.ref for box in unused_boxes(boxes, NOW)] == ["soon", "a", "b", "day"]
    assert unused_boxes([unused("a", HOUR)], NOW) == [UnusedBox("a", "a", HOUR)]


def test_a_removal_is_reported_again_when_half_of_the_time_has_passed() -> None:
    clock = TurnedClock()
    notices = RemovalNotices(clock)
    left = (clock.now() - NOW) + 3 * HOUR
    told: list[int] = []
    for minute in range(0, 180, 5):
        clock.wall = NOW + minute * MINUTE
        told.extend(minute for _ in notices.news("alice", [unused("web", left)]))
    assert told == [0, 90, 135, 160, 170, 175]


def test_a_box_that_was_used_meanwhile_is_reported_anew() -> None:
    notices = RemovalNotices(TurnedClock())
    assert notices.news("alice", [unused("web", 2 * HOUR)])
    assert not notices.news("alice", [unused("web", 2 * HOUR)])
    assert notices.news("alice", [unused("web", 3 * HOUR)])
    assert not notices.news("alice", [VIEW])
    assert notices.news("alice", [unused("web", 3 * HOUR)])


def test_owners_and_boxes_count_for_themselves() -> None:
    notices = RemovalNotices(TurnedClock())
    assert [box.ref for box in notices.news("alice", [unused("web", HOUR)])] == ["web"]
    both = [unused("web", HOUR), unused("db", HOUR)]
    assert [box.ref for box in notices.news("alice", both)] == ["db"]
    assert len(notices.news("bob", both)) == 2


def test_the_memory_for_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal_notices, "MAX_OWNERS", 2)
    notices = RemovalNotices(TurnedClock())
    boxes = [unused("web", HOUR)]
    for owner in ("a", "b", "a", "c"):
        notices.news(owner, boxes)
    assert not notices.news("a", boxes)
    assert notices.news("b", boxes)
