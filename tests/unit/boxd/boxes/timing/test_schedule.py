"""What happens to a box next by itself: the rules as a table, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from boxd.boxes.timing.moments import BootMoment, Now
from boxd.boxes.timing.policy import SHIPPED, Policy
from boxd.boxes.timing.schedule import REACHED, Act, Due, Facts, due, removal
from boxd.model.box import BoxState

NOW = Now(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), BootMoment(timedelta(days=100)))
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
TICK = timedelta(microseconds=1)

RUNNING = Facts(BoxState.RUNNING, None, None, since=NOW.boot)
"""Nobody has used it since it began to run, at this moment."""
ASLEEP = replace(RUNNING, state=BoxState.SUSPENDED)
DOCKER = replace(RUNNING, suspendable=False)
PIN = NOW.boot + 5 * HOUR


def ago(span: timedelta) -> BootMoment:
    """A moment of elapsed time before `NOW`."""
    return NOW.boot + -span


def later(now: Now, by: timedelta) -> Now:
    """`by` later, without a step of the wall clock."""
    return Now(now.wall + by, now.boot + by)


@pytest.mark.parametrize(
    ("facts", "act", "after", "why"),
    [
        (RUNNING, Act.SUSPEND, 2 * MINUTE, "was unused for 2m"),
        (
            replace(RUNNING, since=ago(HOUR), last_used=ago(MINUTE)),
            Act.SUSPEND,
            MINUTE,
            "was unused for 2m",
        ),
        (
            replace(RUNNING, since=ago(MINUTE), last_used=ago(HOUR)),
            Act.SUSPEND,
            MINUTE,
            "was unused for 2m",
        ),
        (replace(RUNNING, grace=MINUTE), Act.SUSPEND, 2 * MINUTE, "was unused for 2m"),
        (
            replace(RUNNING, grace=10 * MINUTE),
            Act.SUSPEND,
            10 * MINUTE,
            "was unused for its grace of 10m",
        ),
        (
            replace(RUNNING, pinned_until=PIN),
            Act.SUSPEND,
            5 * HOUR,
            "was unused for 2m, and its pin ended",
        ),
        (replace(RUNNING, pinned_until=ago(HOUR)), Act.SUSPEND, 2 * MINUTE, "was unused for 2m"),
        (
            replace(RUNNING, pinned_until=NOW.boot + MINUTE),
            Act.SUSPEND,
            2 * MINUTE,
            "was unused for 2m",
        ),
        (replace(RUNNING, durable=True), Act.SUSPEND, 2 * MINUTE, "was unused for 2m"),
        (ASLEEP, Act.REMOVE, 3 * HOUR, "was asleep for 3h"),
        (replace(ASLEEP, state=BoxState.FAILED), Act.REMOVE, 3 * HOUR, "was asleep for 3h"),
        (replace(ASLEEP, since=ago(HOUR), detached=1), Act.REMOVE, 2 * HOUR, "was asleep for 3h"),
        (
            replace(ASLEEP, pinned_until=PIN),
            Act.REMOVE,
            5 * HOUR,
            "was asleep for 3h, and its pin ended",
        ),
        (DOCKER, Act.REMOVE, 3 * HOUR, "was unused for 3h and cannot be suspended"),
        (
            replace(DOCKER, grace=10 * MINUTE),
            Act.REMOVE,
            10 * MINUTE,
            "was unused for its grace of 10m and cannot be suspended",
        ),
        (
            replace(DOCKER, grace=MINUTE),
            Act.REMOVE,
            2 * MINUTE,
            "was unused for 2m and cannot be suspended",
        ),
        (
            replace(RUNNING, confidential=True, grace=10 * MINUTE),
            Act.REMOVE,
            3 * HOUR,
            "was unused for 3h and cannot be suspended",
        ),
        (
            replace(RUNNING, confidential=True, grace=4 * HOUR),
            Act.REMOVE,
            4 * HOUR,
            "was unused for its grace of 4h and cannot be suspended",
        ),
    ],
)
def test_acts_of_elapsed_time(facts: Facts, act: Act, after: timedelta, why: str) -> None:
    assert due(facts, SHIPPED, NOW) == Due(act, NOW.boot + after, why)


@pytest.mark.parametrize(
    "facts",
    [
        replace(RUNNING, holds=1),
        replace(RUNNING, detached=1),
        replace(RUNNING, auto_suspend=False),
        replace(RUNNING, since=None, last_used=ago(HOUR)),
        replace(RUNNING, ephemeral=True),
        replace(ASLEEP, durable=True),
        replace(ASLEEP, auto_suspend=False),
        replace(ASLEEP, holds=1),
        replace(DOCKER, durable=True, grace=MINUTE),
        replace(DOCKER, auto_suspend=False),
        replace(RUNNING, confidential=True, durable=True),
        replace(RUNNING, state=BoxState.CREATING),
        replace(RUNNING, state=BoxState.SUSPENDING),
        replace(RUNNING, state=BoxState.RESUMING),
    ],
)
def test_what_waits_for_its_deadline_alone(facts: Facts) -> None:
    assert due(facts, SHIPPED, NOW) is None
    deadline = NOW.wall + MINUTE
    told = due(replace(facts, deadline=deadline), SHIPPED, NOW)
    assert told == Due(Act.REMOVE, deadline, REACHED)


@pytest.mark.parametrize(
    ("deadline", "act"),
    [(MINUTE, Act.REMOVE), (2 * MINUTE, Act.REMOVE), (3 * MINUTE, Act.SUSPEND)],
)
def test_the_sooner_comes_first_and_the_deadline_on_a_tie(deadline: timedelta, act: Act) -> None:
    told = due(replace(RUNNING, deadline=NOW.wall + deadline), SHIPPED, NOW)
    assert told is not None
    assert told.act is act


def test_a_deadline_that_came_after_a_missed_suspend_removes() -> None:
    facts = replace(RUNNING, since=ago(HOUR), deadline=NOW.wall - MINUTE)
    assert due(facts, SHIPPED, NOW) == Due(Act.REMOVE, NOW.wall - MINUTE, REACHED)


def test_a_step_of_the_wall_clock_makes_a_deadline_come_and_nothing_else() -> None:
    facts = replace(RUNNING, deadline=NOW.wall + HOUR)
    stepped = Now(NOW.wall + HOUR, NOW.boot)
    assert due(facts, SHIPPED, stepped) == Due(Act.REMOVE, NOW.wall + HOUR, REACHED)
    back = Now(NOW.wall - HOUR, NOW.boot)
    assert due(facts, SHIPPED, back) == due(RUNNING, SHIPPED, NOW)


@pytest.mark.parametrize(
    ("facts", "after"),
    [
        (RUNNING, 3 * HOUR + 2 * MINUTE),
        (replace(RUNNING, grace=10 * MINUTE), 3 * HOUR + 10 * MINUTE),
        (replace(RUNNING, pinned_until=PIN), 8 * HOUR),
        (replace(RUNNING, since=ago(HOUR)), 2 * HOUR + 2 * MINUTE),
        (ASLEEP, 3 * HOUR),
        (replace(ASLEEP, since=ago(HOUR)), 2 * HOUR),
        (replace(ASLEEP, since=ago(9 * HOUR), last_used=ago(HOUR)), 2 * HOUR),
        (replace(ASLEEP, pinned_until=PIN), 5 * HOUR),
        (DOCKER, 3 * HOUR),
        (replace(RUNNING, confidential=True), 3 * HOUR),
    ],
)
def test_removals_for_lack_of_use(facts: Facts, after: timedelta) -> None:
    next_removal = removal(facts, SHIPPED, NOW)
    assert next_removal is not None
    assert (next_removal.act, next_removal.moment) == (Act.REMOVE, NOW.boot + after)
    assert not next_removal.urgent
    soon = replace(facts, deadline=NOW.wall + after - MINUTE)
    assert removal(soon, SHIPPED, NOW) == Due(Act.REMOVE, NOW.wall + after - MINUTE, REACHED)
    later_deadline = replace(facts, deadline=NOW.wall + after + MINUTE)
    assert removal(later_deadline, SHIPPED, NOW) == next_removal
    for kept in (replace(facts, durable=True), replace(facts, holds=1)):
        assert removal(kept, SHIPPED, NOW) is None
        deadline = NOW.wall + 9 * HOUR
        at_deadline = Due(Act.REMOVE, deadline, REACHED)
        assert removal(replace(kept, deadline=deadline), SHIPPED, NOW) == at_deadline


# --- what holds for all ----------------------------------------------------------------------

SECONDS = st.integers(1, 300) | st.integers(1, 1_000_000)
SPANS = SECONDS.map(lambda count: timedelta(seconds=count))
AROUND = st.integers(-1_000_000, 1_000_000).map(lambda count: timedelta(seconds=count))
WALLS = AROUND.map(lambda span: NOW.wall + span)
BOOTS = AROUND.map(lambda span: NOW.boot + span)
PAST = SPANS.map(ago)
FACTS = st.builds(
    Facts,
    state=st.sampled_from(BoxState),
    deadline=st.none() | WALLS,
    grace=st.none() | SPANS,
    since=st.none() | PAST,
    last_used=st.none() | PAST,
    holds=st.integers(0, 2),
    detached=st.integers(0, 2),
    pinned_until=st.none() | BOOTS,
    auto_suspend=st.booleans(),
    durable=st.booleans(),
    ephemeral=st.booleans(),
    confidential=st.booleans(),
    suspendable=st.booleans(),
)
IDLE = st.builds(
    Facts,
    state=st.sampled_from([BoxState.RUNNING, BoxState.SUSPENDED]),
    deadline=st.none() | WALLS,
    grace=st.none() | SPANS,
    since=PAST,
    last_used=st.none() | PAST,
    pinned_until=st.none() | BOOTS,
    durable=st.booleans(),
    suspendable=st.booleans(),
)
"""Boxes that nothing but a pin holds."""
POLICIES = st.builds(Policy, idle_timeout=SPANS, idle_reap=SPANS)


@given(FACTS, POLICIES, st.sampled_from(["holds", "detached", "auto_suspend"]))
def test_no_act_while_held_but_the_deadline(facts: Facts, policy: Policy, held: str) -> None:
    by: dict[str, Any] = {held: held != "auto_suspend"}
    state = BoxState.RUNNING if held == "detached" else facts.state
    told = due(replace(facts, state=state, **by), policy, NOW)
    if facts.deadline is None:
        assert told is None
    else:
        assert told == Due(Act.REMOVE, facts.deadline, REACHED)


@given(IDLE, POLICIES, BOOTS)
def test_no_act_before_the_end_of_a_pin_but_the_deadline(
    facts: Facts, policy: Policy, pin: BootMoment
) -> None:
    told = due(replace(facts, pinned_until=pin), policy, NOW)
    assert told is None or told.why == REACHED or NOW.left(told.moment) >= NOW.left(pin)


@given(FACTS, POLICIES, SPANS | st.just(timedelta(0)))
def test_a_deadline_that_came_beats_everything(
    facts: Facts, policy: Policy, since: timedelta
) -> None:
    deadline = NOW.wall - since
    told = due(replace(facts, deadline=deadline), policy, NOW)
    assert told == Due(Act.REMOVE, deadline, REACHED)
    assert told.ripe(NOW)


@given(FACTS | IDLE, POLICIES, WALLS)
def test_nothing_outlives_its_deadline(facts: Facts, policy: Policy, deadline: datetime) -> None:
    told = due(replace(facts, deadline=deadline), policy, NOW)
    assert told is not None
    assert NOW.left(told.moment) <= NOW.left(deadline)


@given(IDLE, POLICIES)
def test_the_moment_that_is_told_is_the_moment_of_the_act(facts: Facts, policy: Policy) -> None:
    told = due(facts, policy, NOW)
    assume(told is not None and not told.ripe(NOW))
    assert told is not None
    at, left = NOW.shown(told.moment), NOW.left(told.moment)
    for by, ripe in ((left / 2, False), (left - TICK, False), (left, True)):
        then = later(NOW, by)
        again = due(facts, policy, then)
        assert again == told
        assert again.ripe(then) is ripe
        assert then.shown(again.moment) == at
    assert later(NOW, left).wall == at


@given(IDLE, POLICIES, AROUND)
def test_elapsed_time_knows_no_step_of_the_wall_clock(
    facts: Facts, policy: Policy, step: timedelta
) -> None:
    timeless = replace(facts, deadline=None)
    stepped = Now(NOW.wall + step, NOW.boot)
    assert due(timeless, policy, stepped) == due(timeless, policy, NOW)


@given(FACTS | IDLE, POLICIES)
def test_who_is_suspended_and_who_is_removed(facts: Facts, policy: Policy) -> None:
    told = due(facts, policy, NOW)
    assume(told is not None and told.why != REACHED)
    assert told is not None
    assert isinstance(told.moment, BootMoment)
    assert facts.since is not None
    if told.act is Act.REMOVE:
        assert not facts.durable
        assert facts.state is not BoxState.RUNNING or facts.confidential or not facts.suspendable
    else:
        assert facts.state is BoxState.RUNNING
        assert facts.suspendable
        assert not facts.confidential
    if facts.state is BoxState.RUNNING:
        unused = told.moment - max(facts.since, facts.last_used or facts.since)
        assert unused >= policy.idle_timeout
        assert facts.grace is None or unused >= facts.grace
    else:
        assert told.moment - facts.since >= policy.idle_reap


@given(FACTS | IDLE, POLICIES)
def test_a_removal_comes_when_the_acts_before_it_have_come(facts: Facts, policy: Policy) -> None:
    """If nobody uses the box, following the acts one by one leads to the same removal."""
    now, seen = NOW, facts
    step = due(seen, policy, now)
    if step is not None and step.act is Act.SUSPEND:
        assert isinstance(step.moment, BootMoment)
        now = later(now, max(now.left(step.moment), timedelta(0)))
        seen = replace(seen, state=BoxState.SUSPENDED, since=step.moment)
        step = due(seen, policy, now)
    first = removal(facts, policy, NOW)
    assert (first is None) is (step is None)
    if first is not None and step is not None:
        assert (first.act, first.moment, first.urgent) == (step.act, step.moment, step.urgent)
    if facts.durable:
        assert first is None or first.urgent
