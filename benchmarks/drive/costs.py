"""Computes the cost of a work per unit from its counters, as figures and tables."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.report import markdown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNITS = {"ops/s": "operation", "files/s": "file", "entries/s": "entry"}
KINDS = {"fuse": "FUSE requests", "database": "round trips", "objects": "object requests"}
"""Names of the counters in tables. `(prepare)` is the round trip that prepares a statement."""
VERBS = ("GET", "PUT", "DELETE")
HEAD = (
    "work",
    "unit",
    "us",
    "mount user us",
    "mount system us",
    "PostgreSQL us",
    "switches",
    "preemptions",
    KINDS["fuse"],
    KINDS["database"],
    "GETs",
    "PUTs",
)


@dataclass(slots=True)
class Cost:
    """The cost of a work: the sum of its repetitions."""

    rate: str
    """The unit of the rate of the work."""
    units: int = 0
    walls: list[float] = field(default_factory=list)
    """Microseconds per unit in each repetition."""
    served: float = 0.0
    """Processor time of PostgreSQL in seconds."""
    used: Counter[str] = field(default_factory=Counter)
    calls: dict[str, defaultdict[str, list[float]]] = field(
        default_factory=lambda: {kind: defaultdict(list) for kind in KINDS}
    )
    errors: list[str] = field(default_factory=list)

    def add(self, units: int, seconds: float, served: float, counted: Mapping[str, Any]) -> None:
        """Add a repetition. `counted` is a result of `Counters.take`."""
        self.units += units
        self.walls.append(1e6 * seconds / units)
        self.served += served
        self.used.update(counted["used"])
        for kind, names in counted["calls"].items():
            for name, times in names.items():
                self.calls[kind][name] += times

    def figures(self) -> dict[str, Any]:
        """Return the figures per unit, in microseconds unless the key says otherwise."""
        figures: dict[str, Any] = {"unit": UNITS[self.rate]}
        if self.errors:
            figures["errors"] = self.errors
        if not self.walls:
            return figures
        return figures | {
            "units": self.units,
            "us": statistics.median(self.walls),
            "spread": [min(self.walls), max(self.walls)],
            "mount_user_us": self._each(1e6 * self.used["user_s"]),
            "mount_system_us": self._each(1e6 * self.used["system_s"]),
            "postgresql_us": self._each(1e6 * self.served),
            "switches": self._each(self.used["switches"]),
            "preemptions": self._each(self.used["preemptions"]),
            "calls": {kind: self._called(names) for kind, names in self.calls.items()},
        }

    def _each(self, amount: float) -> float:
        return round(amount / self.units, 4)

    def _called(self, names: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
        """Return the figures of calls, in descending order of total time."""
        return {
            name: {
                "count": self._each(len(times)),
                "median_us": statistics.median(times),
                "us": self._each(sum(times)),
            }
            for name, times in sorted(names.items(), key=lambda item: -sum(item[1]))
        }


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the report."""
    about, size, works = found["machine"], found["size"], found["works"]
    done = {name: figures for name, figures in works.items() if "calls" in figures}
    text = [
        "# The budget of an operation",
        "",
        f"Our mount ({' '.join(found['options']) or 'no options'}), per unit of work, in "
        f"microseconds. Figures are sums over {found['repeat']} repetitions; `us` is their median. "
        f"{size['files']} files, trees of {size['tree']} files. Requests overlap and wait for each "
        "other, so their times do not add up. PostgreSQL: processor time of all its processes. "
        "Switches: voluntary context switches of the mount process; preemptions: involuntary ones. "
        "The figures include background work of the mount: heartbeats and upkeep.",
        "",
        f"{about['cpus']} x {about['cpu']}, {about['memory']}, {about['system']}, kernel "
        f"{about['kernel']}; load before {about['load_before']}; commit {found['commit'][:12]}, "
        f"{found['date']}.",
        "",
        *markdown([HEAD, *(_row(name, figures) for name, figures in done.items())], left=2),
    ]
    for name, figures in done.items():
        text += ["", f"## {name}", "", *_table(figures)]
    failed = {name: figures["errors"] for name, figures in works.items() if "errors" in figures}
    if failed:
        text += ["", "## Failures", ""]
        text += [f"- {name}: {error}" for name, errors in failed.items() for error in errors]
    return text


def _row(name: str, figures: Mapping[str, Any]) -> tuple[str, ...]:
    calls = figures["calls"]
    objects = {verb: calls["objects"].get(verb, {"count": 0.0})["count"] for verb in VERBS}
    keys = ("us", "mount_user_us", "mount_system_us", "postgresql_us")
    return (
        name,
        figures["unit"],
        *(f"{figures[key]:,.0f}" for key in keys),
        *(_shown(figures[key]) for key in ("switches", "preemptions")),
        *(_shown(trips(calls[kind])) for kind in ("fuse", "database")),
        *(_shown(objects[verb]) for verb in ("GET", "PUT")),
    )


def trips(names: Mapping[str, Mapping[str, float]]) -> float:
    """Return the number of calls of a kind per unit."""
    return sum(one["count"] for one in names.values())


def _table(figures: Mapping[str, Any]) -> list[str]:
    rows = [("kind", "name", f"per {figures['unit']}", "median us", f"us per {figures['unit']}")]
    rows += [
        (
            KINDS[kind],
            name,
            _shown(one["count"]),
            f"{one['median_us']:,.0f}",
            f"{one['us']:,.1f}",
        )
        for kind, names in figures["calls"].items()
        for name, one in names.items()
    ]
    return markdown(rows, left=2)


def _shown(count: float) -> str:
    return f"{count:.3f}" if 0 < count < 0.1 else f"{count:.2f}"
