"""An observer that reports to two others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from boxd.observation import Event, Observation, Observer, Work


class Pair:
    """Implements `Observer`."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first = first
        self._second = second

    def work(
        self, work: Work, name: str = "", parent: str = ""
    ) -> AbstractContextManager[Observation]:
        """Implements `Observer`."""
        return _Both(self._first.work(work, name, parent), self._second.work(work, name, parent))

    def event(self, event: Event) -> None:
        """Implements `Observer`."""
        self._first.event(event)
        self._second.event(event)


class _Both:
    """Implements `Observation`."""

    __slots__ = ("_contexts", "_observations")

    def __init__(
        self,
        first: AbstractContextManager[Observation],
        second: AbstractContextManager[Observation],
    ) -> None:
        self._contexts = (first, second)
        self._observations: tuple[Observation, ...] = ()

    def end_as(self, name: str, outcome: str) -> None:
        for observation in self._observations:
            observation.end_as(name, outcome)

    def __enter__(self) -> _Both:
        self._observations = tuple(one.__enter__() for one in self._contexts)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for one in reversed(self._contexts):
            one.__exit__(kind, error, traceback)
