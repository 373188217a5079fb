"""The times of an operation, and their quantiles."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


REFUSALS = 3


class CannotError(Exception):
    """The service refuses the operation. The text is the reason."""


@dataclass
class Times:
    """The times of an operation: milliseconds of successful attempts, and the number of all."""

    attempts: int = 0
    good: list[float] = field(default_factory=list)
    refused: str = ""
    """The reason of the last refusal."""

    @property
    def cannot(self) -> str:
        """The reason of the refusals; "" if any attempt succeeded."""
        return "" if self.good else self.refused

    @property
    def success(self) -> float:
        """The share of successful attempts."""
        return len(self.good) / self.attempts if self.attempts else 0.0

    def percentile(self, percent: int) -> float | None:
        """Return the smallest time that `percent` of the successful attempts do not exceed."""
        if not self.good:
            return None
        ordered = sorted(self.good)
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    def figures(self) -> dict[str, float | None]:
        """Return the figures for JSON, in ms; null if no attempt succeeded."""
        found = {f"p{percent}": self.percentile(percent) for percent in (50, 95, 99)}
        rounded = {name: None if ms is None else round(ms, 2) for name, ms in found.items()}
        return {**rounded, "success": round(self.success, 4)}

    def row(self, name: str, goal: str) -> tuple[str, ...]:
        """Return the row of a table."""
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
    """Make `runs` attempts and add their times.

    `before` and `after` are not timed; if one of them fails, the attempt has failed. After
    `REFUSALS` refusals without a success there are no more attempts.
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
