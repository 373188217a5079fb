"""The same works on several targets, interleaved: A B, B A, so that a drift hits all alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wrkfs.bench.crew import Crew, TooSlow
from wrkfs.bench.place import THOUSAND, Material, Place, Size, WorkFailed
from wrkfs.bench.works import ALL, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wrkfs.bench.target import Target


@dataclass(slots=True)
class Series:
    """The repetitions of one work on one target."""

    rates: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    given_up: bool = False


Found = dict[str, dict[str, Series]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done, how much and how often."""

    size: Size
    material: Material
    repeat: int
    works: tuple[Work, ...] = ALL
    clients: int = 1
    limit: float = 1800.0
    """Seconds after which a step is given up."""
    label: str = "one"
    """Names the directories of this plan's clients."""
    inside: bool = False
    """Work among the entries that are listed, not in directories that are empty at first."""


def measure(targets: Sequence[Target], plan: Plan, tell: Callable[[str], None]) -> Found:
    """Series by work and target. What fails is noted and stops nothing."""
    found: Found = {
        work.name: {target.name: Series() for target in targets if work.name not in target.skips}
        for work in plan.works
    }
    with Crew(plan.clients, plan.limit) as crew:
        for turn in range(plan.repeat):
            for number, work in enumerate(plan.works):
                tell(f"{plan.label} {turn + 1}/{plan.repeat} {work.name}")
                order = targets if (turn + number) % 2 == 0 else targets[::-1]
                for target in order:
                    series = found[work.name].get(target.name)
                    if series is not None and not series.given_up:
                        _attempt(crew, work, target, plan, turn, series)
            for target in targets:
                _forget_large(places(target.path, plan, turn))
    return found


def places(root: Path, plan: Plan, turn: int) -> list[Place]:
    """Where each client works."""
    if plan.inside:
        stem = f"{plan.label}{turn}-"
        return [
            Place(root / THOUSAND, root, plan.size, plan.material, f"{stem}{number}-")
            for number in range(plan.clients)
        ]
    mine = [root / f"{plan.label}-client{number}" for number in range(plan.clients)]
    return [
        Place(path / f"turn{turn}", path / "lasting", plan.size, plan.material) for path in mine
    ]


def _attempt(crew: Crew, work: Work, target: Target, plan: Plan, turn: int, series: Series) -> None:
    try:
        try:
            target.check()
        except WorkFailed:
            # An earlier work may have cost it its mount.
            target.cool()
        series.rates.append(crew.rate(work, target, places(target.path, plan, turn)))
    except (WorkFailed, OSError) as error:
        series.errors.append(str(error))
        series.given_up = isinstance(error, TooSlow)


def _forget_large(here: Sequence[Place]) -> None:
    """The large files would fill the disk, one by one."""
    for place in here:
        try:
            place.path("large").unlink(missing_ok=True)
        except OSError:  # the target is out of order, which its attempts have told
            return
