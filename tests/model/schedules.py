"""All orders in which the parts of a world may go on, one run of the world for each.

A world stands still until an `Event` is chosen. Events that touch nothing in common give the same
result in either order, so only one of the two is run (sleep sets): what is left is every behaviour,
not every order. A run is repeated from the beginning for each choice: worlds are deterministic.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tests.harness.simulation.virtual_loop import T, VirtualLoop

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Generator, Hashable
    from contextvars import Context

Key: TypeAlias = "tuple[Hashable, ...]"

OPPOSED = frozenset({frozenset({"begin", "end"}), frozenset({"commit", "drop"})})
"""Roles whose order matters: whether a call ended before another began, and whether somebody
relied on an answer when it became untrue."""


class Violation(AssertionError):
    """A schedule after which something is wrong; `schedule` are the keys of its events."""

    schedule: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that may happen next.

    `key` names it in every order of events. `client`: whose state it changes; `reads`, `writes`:
    what of the shared state it touches; `roles`: see OPPOSED. `alone`: it commutes with nothing.
    """

    key: Key
    run: Callable[[], None] = field(compare=False, repr=False)
    client: int | None = None
    reads: frozenset[Hashable] = frozenset()
    writes: frozenset[Hashable] = frozenset()
    roles: frozenset[str] = frozenset()
    alone: bool = False

    def clashes(self, other: Event) -> bool:
        """Whether the order of the two may matter."""
        if self.alone or other.alone or (self.client is not None and self.client == other.client):
            return True
        if self.writes & other.writes or self.writes & other.reads or self.reads & other.writes:
            return True
        return any(frozenset({a, b}) in OPPOSED for a in self.roles for b in other.roles)


class World(Protocol):
    """What is explored."""

    def enabled(self) -> list[Event]:
        """What may happen next, in a fixed order."""
        ...

    def step(self, event: Event) -> None:
        """Lets it happen, and everything that follows at once. Violation."""
        ...

    def finish(self) -> None:
        """Nothing can happen any more. Violation."""
        ...

    def end(self) -> None:
        """Ends what still waits."""
        ...


class StepLoop(VirtualLoop):
    """An event loop that runs what is ready, first come, first served, and stops then."""

    def __init__(self) -> None:
        super().__init__(0)
        self._tasks: list[asyncio.Task[Any]] = []

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """A task of this loop."""
        task = super().create_task(coro, name=name, context=context)
        self._tasks.append(task)
        return task

    def drain(self, first: Callable[[], None] | None = None) -> None:
        """Calls `first`, and runs until nothing is ready."""
        events._set_running_loop(self._self)
        try:
            if first is not None:
                first()
            while self._ready:
                handle = self._ready.pop(0)
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)

    def cancel_all(self) -> None:
        """Ends all tasks."""
        for _ in range(10):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            self.drain()
        raise AssertionError("tasks do not end")


@dataclass(slots=True)
class Report:
    """What an exploration has seen. `cut`: orders left because an equal one was run."""

    complete: int = 0
    cut: int = 0
    steps: int = 0
    exhausted: bool = False


@dataclass(slots=True)
class _Frame:
    """One choice: what was possible, what need not be tried (any more), what was chosen."""

    awake: list[Event]
    asleep: dict[Key, Event]
    chosen: Event


def explore(build: Callable[[], World], *, most: int) -> Report:
    """Runs schedules until all are run, or `most`. Violation: with its schedule."""
    report = Report()
    frames: list[_Frame] = []
    while report.complete + report.cut < most:
        world = build()
        try:
            _run(world, frames, report)
        except Violation as violation:
            violation.schedule = tuple(frame.chosen.key for frame in frames)
            violation.add_note("\n".join(str(key) for key in violation.schedule))
            raise
        finally:
            world.end()
        while frames and not _next(frames[-1]):
            frames.pop()
        if not frames:
            report.exhausted = True
            return report
    return report


def replay(build: Callable[[], World], schedule: tuple[Key, ...]) -> None:
    """One schedule once more, as far as it goes, and then to its end. Violation."""
    world = build()
    try:
        for key in schedule:
            _do(world, key)
        while found := world.enabled():
            world.step(found[0])
        world.finish()
    finally:
        world.end()


def wander(build: Callable[[], World], chance: random.Random) -> None:
    """One schedule by chance. Violation: with its schedule."""
    world = build()
    keys: list[Key] = []
    try:
        while found := world.enabled():
            event = chance.choice(found)
            keys.append(event.key)
            world.step(event)
        world.finish()
    except Violation as violation:
        violation.schedule = tuple(keys)
        violation.add_note("\n".join(str(key) for key in keys))
        raise
    finally:
        world.end()


def _do(world: World, key: Key) -> None:
    world.step(next(event for event in world.enabled() if event.key == key))


def _run(world: World, frames: list[_Frame], report: Report) -> None:
    for frame in frames:
        _do(world, frame.chosen.key)
    asleep: dict[Key, Event] = {}
    if frames:
        asleep = _passed_on(frames[-1])
    while found := world.enabled():
        awake = [event for event in found if event.key not in asleep]
        if not awake:
            report.cut += 1
            return
        frames.append(_Frame(awake, asleep, awake[0]))
        asleep = _passed_on(frames[-1])
        report.steps += 1
        world.step(awake[0])
    world.finish()
    report.complete += 1


def _passed_on(frame: _Frame) -> dict[Key, Event]:
    """What need not be tried after the choice: it was tried before it, and they commute."""
    chosen = frame.chosen
    return {key: event for key, event in frame.asleep.items() if not event.clashes(chosen)}


def _next(frame: _Frame) -> bool:
    """Takes the next choice; False: all were tried."""
    frame.asleep[frame.chosen.key] = frame.chosen
    for event in frame.awake:
        if event.key not in frame.asleep:
            frame.chosen = event
            return True
    return False
