"""The next automatic action on a box, its time and its reason: one pure function, `due`.

The timers and `ls` both use it, so they agree. The rules:

==========  =========  ==============================================  =======================
rule        clock      from, and how long                              then the box is
==========  =========  ==============================================  =======================
deadline    wall       creation, `^ttl`                                removed, even if held
idle        boot       last use, the longer of idle-timeout and grace  suspended
idle, when  boot       the same, and not less than idle-reap if no     removed
it cannot              grace was stated or it is confidential
suspend
reap        boot       suspension, idle-reap                           removed
==========  =========  ==============================================  =======================

A box is in use while a client is attached to it, or while its agent reports an open shell or a
background command. A pin
postpones actions that are due by elapsed time to the end of the pin. While auto-suspend is off,
nothing is due by elapsed time. A durable box is removed only at its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from boxd.boxes.timing.moments import BootMoment
from boxd.model.box import BoxState
from boxd.names.duration import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.boxes.timing.moments import Moment, Now
    from boxd.boxes.timing.policy import Policy

REACHED = "reached its deadline"
"""The reason for a removal at the deadline, which happens even if the box is held."""
_NO_TIME = timedelta(0)
_ASLEEP = frozenset({BoxState.SUSPENDED, BoxState.FAILED})
"""States in which no process of the box runs and no task is starting it."""


class Act(StrEnum):
    """The action of the daemon, as `ls` shows it."""

    SUSPEND = "suspended"
    REMOVE = "removed"


@dataclass(frozen=True, slots=True)
class Due:
    """An action and its time. `why` follows "box NAME" in messages; it is in the past tense."""

    act: Act
    moment: Moment
    why: str

    @property
    def urgent(self) -> bool:
        """Whether the action cancels other work on the box: true at its deadline."""
        return self.why == REACHED

    def ripe(self, now: Now) -> bool:
        """Return whether the time of the action has come."""
        return now.left(self.moment) <= _NO_TIME

    def not_before(self, moment: BootMoment | None) -> Due:
        """Return the same action, but not before `moment` if it counts elapsed time."""
        if moment is None or not isinstance(self.moment, BootMoment) or self.moment >= moment:
            return self
        return Due(self.act, moment, self.why)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a box. The defaults postpone nothing.

    `grace` None: no grace period was stated. `suspendable`: the backend can suspend boxes on this
    host.
    """

    state: BoxState
    deadline: datetime | None
    grace: timedelta | None
    since: BootMoment | None = None
    """When the box entered its state; None: unknown, so no elapsed time counts."""
    last_used: BootMoment | None = None
    """When the last client detached, the last shell ended, or the box ceased to be durable; None:
    never, or unknown.
    """
    holds: int = 0
    """Number of attached clients."""
    detached: int = 0
    """Number of detached shells and background commands that the agent reports. Those of a
    suspended box do not count."""
    pinned_until: BootMoment | None = None
    """End of the pin of the box; None: it has no pin."""
    paused_until: BootMoment | None = None
    """Being unused has no effect before this time: a suspension failed, or a new daemon does not
    know yet whether the box is in use.
    """
    auto_suspend: bool = True
    durable: bool = False
    ephemeral: bool = False
    """The box is removed at the last detach, independent of time."""
    confidential: bool = False
    """The memory of the box is never written to a disk, as for boxes that may run containers."""
    suspendable: bool = True


def due(facts: Facts, policy: Policy, now: Now) -> Due | None:
    """Return the next action on a box that no user touches, or None.

    A passed deadline always wins, even if another action was due earlier.
    """
    idle = _idle(facts, policy)
    if facts.deadline is None:
        return idle
    end = Due(Act.REMOVE, facts.deadline, REACHED)
    if idle is None or end.ripe(now):
        return end
    return idle if now.left(idle.moment) < now.left(end.moment) else end


def removal(facts: Facts, policy: Policy, now: Now) -> Due | None:
    """Return the removal of the box if no user touches it until then, or None.

    A box that is due for suspension is removed `idle_reap` after it. A box in use has only its
    deadline.
    """
    next_due = due(facts, policy, now)
    if next_due is None or next_due.act is Act.REMOVE:
        return next_due
    if not isinstance(next_due.moment, BootMoment):
        raise TypeError("a suspension is due by elapsed time")
    return due(replace(facts, state=BoxState.SUSPENDED, since=next_due.moment), policy, now)


def _idle(facts: Facts, policy: Policy) -> Due | None:
    """Return the next action by elapsed time, or None."""
    if facts.since is None or facts.holds or facts.ephemeral or not facts.auto_suspend:
        return None
    if facts.state is BoxState.RUNNING and not facts.detached:
        return _unused(facts, facts.since, policy)
    if facts.state in _ASLEEP and not facts.durable:
        why = f"was asleep for {format_duration(policy.idle_reap)}"
        return _after_pin(
            facts, Act.REMOVE, _unused_since(facts, facts.since) + policy.idle_reap, why
        )
    return None


def _unused_since(facts: Facts, since: BootMoment) -> BootMoment:
    """Return when the box entered its state, or the last use if that is later."""
    return since if facts.last_used is None else max(since, facts.last_used)


def _unused(facts: Facts, since: BootMoment, policy: Policy) -> Due | None:
    """Return the next action on an unused running box. A woken box counts from its wake-up."""
    began = _unused_since(facts, since)
    span, why = policy.idle_timeout, f"was unused for {format_duration(policy.idle_timeout)}"
    if facts.grace is not None and facts.grace > span:
        span, why = facts.grace, f"was unused for its grace of {format_duration(facts.grace)}"
    if facts.suspendable and not facts.confidential:
        return _after_pin(facts, Act.SUSPEND, began + span, why).not_before(facts.paused_until)
    if facts.durable:
        return None
    stated = facts.grace is not None and not facts.confidential
    if not stated and policy.idle_reap > span:
        span, why = policy.idle_reap, f"was unused for {format_duration(policy.idle_reap)}"
    removal = _after_pin(facts, Act.REMOVE, began + span, f"{why} and cannot be suspended")
    return removal.not_before(facts.paused_until)


def _after_pin(facts: Facts, act: Act, moment: BootMoment, why: str) -> Due:
    """Return an action that a pin postpones to its end. A pin never brings an action forward."""
    pinned = facts.pinned_until
    if pinned is not None and pinned > moment:
        return Due(act, pinned, f"{why}, and its pin ended")
    return Due(act, moment, why)
