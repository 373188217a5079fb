"""Reports about work: outcomes, wrapped methods, and an observer that ignores everything."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadName, BoxdError, RootHeld, Unavailable
from boxd.observation import UNOBSERVED, Event, Waiting, Work, observed, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.observation import Observation, Observer


class Recorder:
    """An observer that records what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def work(self, work: Work, name: str = "", parent: str = "") -> Iterator[Observation]:
        """Record the begin and the end."""
        self.lines.append(f"begin {work.value} {name}{parent}".rstrip())
        try:
            yield UNOBSERVED.work(work).__enter__()
        except BaseException as error:
            self.lines.append(f"end {outcome_of(error)}")
            raise
        self.lines.append("end ok")

    def event(self, event: Event) -> None:
        """Record an event."""
        self.lines.append(event.value)


class Boxes:
    """An object with an observed method."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    @observed(Work.SUSPEND)
    async def suspend(self, name: str, *, why: str) -> str:
        """Return the arguments, or fail."""
        if not name:
            raise BadName("give a name")
        return f"{name} {why}"


async def test_an_observed_method_is_a_piece_of_work() -> None:
    recorder = Recorder()
    boxes = Boxes(recorder)
    assert await boxes.suspend("dev", why="idle") == "dev idle"
    with pytest.raises(BadName):
        await boxes.suspend("", why="idle")
    assert recorder.lines == ["begin suspend box", "end ok", "begin suspend box", "end refused"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (BadName("x"), "refused"),
        (BoxdError("x"), "refused"),
        (Unavailable("x"), "failed"),
        (RootHeld("x"), "failed"),
        (OSError("x"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
    ],
)
def test_errors_of_the_service_are_failures_and_others_refusals(
    error: BaseException | None, outcome: str
) -> None:
    assert outcome_of(error) == outcome


async def test_without_an_observer_work_is_unchanged() -> None:
    with UNOBSERVED.work(Work.HTTP, parent="x") as observation:
        observation.end_as("GET /", "200")
    UNOBSERVED.event(Event.SSH_LIMITED)
    assert await Boxes(UNOBSERVED).suspend("dev", why="idle") == "dev idle"


def test_waiting_tasks_are_counted_until_they_stop() -> None:
    waiting = Waiting()
    with waiting:
        with waiting:
            assert waiting.count == 2
        assert waiting.count == 1
    with pytest.raises(ValueError, match="gone"), waiting:
        raise ValueError("gone")
    assert waiting.count == 0
