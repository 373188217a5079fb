"""Runs the same workloads on several targets, in turns (A B, B A): a drift affects all equally."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wrkfs.bench.clients import ClientPool, TooSlow
from wrkfs.bench.place import LISTED, Material, Place, Size, WorkloadFailed
from wrkfs.bench.workloads import ALL, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from wrkfs.bench.target import Target


@dataclass(slots=True)
class Series:
    """The repetitions of one workload on one target."""

    rates: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    timed_out: bool = False


Measurements = dict[str, dict[str, Series]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Workloads, their size, and the number of repetitions."""

    size: Size
    material: Material
    repeat: int
    workloads: tuple[Workload, ...] = ALL
    clients: int = 1
    limit: float = 1800.0
    """Maximum number of seconds of one step."""
    label: str = "one"
    """Prefix for the directories of this plan's clients."""
    inside: bool = False
    """True: run among the entries of the listed directory, and not in empty directories."""


def measure(targets: Sequence[Target], plan: Plan, progress: Callable[[str], None]) -> Measurements:
    """Return a series for each workload and target. A failure does not end the run."""
    measurements: Measurements = {
        workload.name: {
            target.name: Series() for target in targets if workload.name not in target.skips
        }
        for workload in plan.workloads
    }
    with ClientPool(plan.clients, plan.limit) as pool:
        for turn in range(plan.repeat):
            for number, workload in enumerate(plan.workloads):
                progress(f"{plan.label} {turn + 1}/{plan.repeat} {workload.name}")
                order = targets if (turn + number) % 2 == 0 else targets[::-1]
                for target in order:
                    series = measurements[workload.name].get(target.name)
                    if series is not None and not series.timed_out:
                        _attempt(pool, workload, target, plan, turn, series)
            for target in targets:
                _remove_large(places(target.path, plan, turn))
    return measurements


def places(root: Path, plan: Plan, turn: int) -> list[Place]:
    """Return the place of each client."""
    if plan.inside:
        stem = f"{plan.label}{turn}-"
        return [
            Place(root / LISTED, root, plan.size, plan.material, f"{stem}{number}-")
            for number in range(plan.clients)
        ]
    paths = [root / f"{plan.label}-client{number}" for number in range(plan.clients)]
    return [
        Place(path / f"turn{turn}", path / "lasting", plan.size, plan.material) for path in paths
    ]


def _attempt(
    pool: ClientPool, workload: Workload, target: Target, plan: Plan, turn: int, series: Series
) -> None:
    try:
        try:
            target.check()
        except WorkloadFailed:
            # An earlier workload may have ended the target's mount process.
            target.drop_caches()
        series.rates.append(pool.rate(workload, target, places(target.path, plan, turn)))
    except (WorkloadFailed, OSError) as error:
        series.errors.append(str(error))
        series.timed_out = isinstance(error, TooSlow)


def _remove_large(here: Sequence[Place]) -> None:
    """Remove the large files of one repetition: those of all repetitions would fill the disk."""
    for place in here:
        try:
            place.path("large").unlink(missing_ok=True)
        except OSError:  # the target is broken; its series has the errors
            return
