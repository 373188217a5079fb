"""What happens to a box next by itself, when and why: one pure function, `due`.

The timers act by it and `ls` shows it, so that what is told is what happens. The rules:

==========  =========  ==============================================  =======================
rule        counts on  from, and how long                              then the box is
==========  =========  ==============================================  =======================
deadline    wall       creation, `^ttl`                                removed, whatever holds
idle        boot       last use, the longer of idle-timeout and grace  suspended
idle, when  boot       the same, and not less than idle-reap if no     removed
it cannot              grace was stated or it is confidential
suspend
reap        boot       suspension, idle-reap                           removed
==========  =========  ==============================================  =======================

A box is in use while a client is attached to it or a shell is open in it that its agent reports. A
pin holds what is due by elapsed time until the pin ends; while auto-suspend is off nothing is due
by elapsed time. A durable box is never removed but at its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from boxd.boxes.moments import BootMoment
from boxd.model.box import BoxState
from boxd.names.duration import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.boxes.moments import Moment, Now
    from boxd.boxes.policy import Policy

REACHED = "reached its deadline"
"""Why a box is removed whatever holds it."""
_NO_TIME = timedelta(0)
_ASLEEP = frozenset({BoxState.SUSPENDED, BoxState.FAILED})
"""States in which no process of the box runs and nobody is bringing it back."""


class Act(StrEnum):
    """What becomes of the box, as `ls` says it."""

    SUSPEND = "suspended"
    REMOVE = "removed"


@dataclass(frozen=True, slots=True)
class Due:
    """An act and its moment. `why` is what people are told after "box NAME ...", in the past."""

    act: Act
    moment: Moment
    why: str

    @property
    def urgent(self) -> bool:
        """Whether it is done whatever happens to the box meanwhile: at its deadline."""
        return self.why == REACHED

    def ripe(self, now: Now) -> bool:
        """Whether the moment has come."""
        return now.left(self.moment) <= _NO_TIME

    def not_before(self, moment: BootMoment | None) -> Due:
        """The same by elapsed time, at `moment` if that is later."""
        if moment is None or not isinstance(self.moment, BootMoment) or self.moment >= moment:
            return self
        return Due(self.act, moment, self.why)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a box when it is asked what is due. What is not said holds nothing.

    `grace` None: nobody stated one. `suspendable`: the backend can suspend boxes on this host.
    """

    state: BoxState
    deadline: datetime | None
    grace: timedelta | None
    since: BootMoment | None = None
    """When the box came into its state; None: not known, so that no elapsed time is counted."""
    last_used: BootMoment | None = None
    """When the last client detached or the last shell ended; None: never, or not known."""
    holds: int = 0
    """Clients that are attached."""
    shells: int = 0
    """Detached shells that the agent reports. Those of a box that sleeps do not count."""
    pinned_until: BootMoment | None = None
    """The end of its one pin."""
    paused_until: BootMoment | None = None
    """Not being used has no effect before that: it could not be suspended, or a new daemon does not
    know yet whether it is used."""
    auto_suspend: bool = True
    durable: bool = False
    ephemeral: bool = False
    """Removed at the last detach, which is no matter of time."""
    confidential: bool = False
    """Its memory never goes to the disk."""
    suspendable: bool = True


def due(facts: Facts, policy: Policy, now: Now) -> Due | None:
    """What happens to the box next if nobody touches it; None: nothing.

    A deadline that has come is always the answer, also when something else was due before it.
    """
    idle = _idle(facts, policy)
    if facts.deadline is None:
        return idle
    end = Due(Act.REMOVE, facts.deadline, REACHED)
    if idle is None or end.ripe(now):
        return end
    return idle if now.left(idle.moment) < now.left(end.moment) else end


def _idle(facts: Facts, policy: Policy) -> Due | None:
    """What is due by elapsed time."""
    if facts.since is None or facts.holds or facts.ephemeral or not facts.auto_suspend:
        return None
    if facts.state is BoxState.RUNNING and not facts.shells:
        return _unused(facts, facts.since, policy)
    if facts.state in _ASLEEP and not facts.durable:
        why = f"was asleep for {format_duration(policy.idle_reap)}"
        return _after_pin(facts, Act.REMOVE, facts.since + policy.idle_reap, why)
    return None


def _unused(facts: Facts, since: BootMoment, policy: Policy) -> Due | None:
    """Of a running box that nobody uses. A box that was just woken counts from its waking."""
    began = since if facts.last_used is None else max(since, facts.last_used)
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
    """A pin postpones an act to its end; it never brings one forward."""
    pinned = facts.pinned_until
    if pinned is not None and pinned > moment:
        return Due(act, pinned, f"{why}, and its pin ended")
    return Due(act, moment, why)
