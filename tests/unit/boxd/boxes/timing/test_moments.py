"""Two clocks: what a rule of elapsed time and a deadline make of a step of the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from boxd.boxes.timing.moments import BootMoment, Now
from boxd.clock import SystemClock
from tests.harness.simulation.world import TurnedClock

HOUR = timedelta(hours=1)


def test_both_hands_are_read() -> None:
    clock = TurnedClock()
    now = Now.read(clock)
    assert now == Now(clock.wall, BootMoment(timedelta(seconds=1000)))
    clock.turn(HOUR)
    later = Now.read(clock)
    assert later.boot - now.boot == later.wall - now.wall == HOUR


def test_a_step_of_the_wall_clock_moves_deadlines_only() -> None:
    clock = TurnedClock()
    before = Now.read(clock)
    deadline, elapsed = before.wall + HOUR, before.boot + HOUR
    assert before.left(deadline) == before.left(elapsed) == HOUR
    clock.wall += timedelta(minutes=50)
    after = Now.read(clock)
    assert after.left(deadline) == timedelta(minutes=10)
    assert after.left(elapsed) == HOUR
    assert after.shown(deadline) == deadline
    assert after.shown(elapsed) == after.wall + HOUR


def test_moments_of_elapsed_time_have_an_order() -> None:
    one = BootMoment(timedelta(seconds=1))
    assert max(one, one + HOUR) == one + HOUR
    assert (one + HOUR) - one == HOUR


def test_the_machine_s_clocks_are_read() -> None:
    now = Now.read(SystemClock())
    assert now.wall.tzinfo is UTC
    assert now.wall > datetime(2020, 1, 1, tzinfo=UTC)
    assert now.boot > BootMoment(timedelta(0))
