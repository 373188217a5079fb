"""Times of one work, attempt by attempt, and what is told of them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


REFUSALS = 3


class CannotError(Exception):
    """The service refuses the work; the text is its reason."""


@dataclass
class Times:
    """Of one work: milliseconds of the attempts that succeeded, and how many there were."""

    attempts: int = 0
    good: list[float] = field(default_factory=list)
    refused: str = ""
    """What the service said when it last refused the work."""

    @property
    def cannot(self) -> str:
        """Why the service cannot do the work; "" when it did it even once."""
        return "" if self.good else self.refused

    @property
    def success(self) -> float:
        """Share of the attempts."""
        return len(self.good) / self.attempts if self.attempts else 0.0

    def percentile(self, percent: int) -> float | None:
        """The smallest time that so many per cent of the good attempts do not exceed."""
        if not self.good:
            return None
        ordered = sorted(self.good)
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    def figures(self) -> dict[str, float | None]:
        """As the JSON has them, in ms; null when no attempt succeeded."""
        found = {f"p{percent}": self.percentile(percent) for percent in (50, 95, 99)}
        rounded = {name: None if ms is None else round(ms, 2) for name, ms in found.items()}
        return {**rounded, "success": round(self.success, 4)}

    def row(self, name: str, goal: str) -> tuple[str, ...]:
        """As the table has them."""
        if self.cannot:
            return (name, goal, f"cannot: {self.cannot}", "", "", "")
        times = (self.percentile(percent) for percent in (50, 95, 99))
        shown = ("-" if ms is None else f"{ms:.1f}" for ms in times)
        return (name, goal, *shown, f"{len(self.good)} of {self.attempts}")


def measured(
    times: Times,
    runs: int,
    work: Callable[[], bool],
    before: Callable[[], bool] = lambda: True,
    after: Callable[[], bool] = lambda: True,
) -> None:
    """Adds so many attempts. `before` and `after` are not timed; where they fail, so did it.

    A work that the service has refused `REFUSALS` times and never done is not tried again.
    """
    for _ in range(runs):
        if times.cannot and times.attempts >= REFUSALS:
            return
        times.attempts += 1
        try:
            ready = before()
            start = time.perf_counter()
            done = ready and work()
            ms = (time.perf_counter() - start) * 1000
            done = done and after()
        except CannotError as error:
            times.refused = str(error)
            continue
        if done:
            times.good.append(ms)
