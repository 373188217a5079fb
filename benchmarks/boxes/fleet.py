"""Measures many boxes on its own service: `python -m benchmarks.boxes.fleet [--quick]`.

Writes `boxes_fleet.json` and `boxes_fleet.md` into `benchmarks/results`. They contain the memory of
the daemon with 50 running and 200 suspended boxes, the time to list the boxes of an owner, and the
remains of 500 boxes that were created and removed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.boxes.measure import CALM, Bench
from benchmarks.latency import CannotError, Times, measured
from benchmarks.report import RESULTS, machine, markdown, revision, write
from tests.e2e.service import Person, Service
from tests.harness.service.footprint import Footprint

MIB = 1 << 20
OWNERS = 5
"""Number of owners. An owner has at most 50 boxes."""
LIMITS = "--max-running 100"
RSS_GOAL, LIST_GOAL = "<= 300 MB", "<= 20 ms"
PARALLEL = 4


@dataclass(frozen=True)
class Size:
    """The amount of work. `running` and `asleep` are boxes of each owner."""

    running: int
    asleep: int
    lists: int
    churn: int


FULL, QUICK = Size(10, 40, 100, 500), Size(1, 1, 5, 8)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boxes.fleet")
    parser.add_argument(
        "--quick", action="store_true", help="a few boxes; results go to a new directory"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="directory of the results")
    given = parser.parse_args()
    facts = machine()
    size = QUICK if given.quick else FULL
    to = (
        Path(tempfile.mkdtemp(prefix="bench-")) if given.quick and given.to == RESULTS else given.to
    )
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        service = Service(Path(name) / "state", f"{CALM} {LIMITS}")
        try:
            first = Bench.on(service, Path(name) / "home0")
            owners = [first, *(another(first, Path(name) / f"home{n}") for n in range(1, OWNERS))]
            churned = churn(first, size.churn)
            standing = fleet(owners, size)
        finally:
            service.close()
    report({"fleet": standing, "churn": churned, "machine": facts, **revision()}, to)


def another(bench: Bench, home: Path) -> Bench:
    """Create another owner on the same service."""
    person = Person(bench.service, home)
    return Bench(bench.service, person, person.new_key("bench"))


def fleet(owners: list[Bench], size: Size) -> dict[str, object]:
    """Create the boxes of all owners; measure the daemon's memory and the time of lists."""

    def fill(bench: Bench) -> str:
        """Create suspended boxes first, because few may run at once; return why if they cannot."""
        why = ""
        for number in range(size.asleep):
            name = f"asleep{number}"
            if why or not bench.over_ssh(name):
                continue
            try:
                bench.power(name, "suspend", "suspended")
            except CannotError as error:
                why = str(error)
                bench.person.ssh("cli", "rm", name)
        for number in range(size.running):
            bench.over_ssh(f"awake{number}")
        return why

    with ThreadPoolExecutor(PARALLEL) as pool:
        refused = [why for why in pool.map(fill, owners) if why]
    states = [box["state"] for bench in owners for box in listed(bench)]
    times = Times()
    for bench in owners:
        measured(times, size.lists, partial(lists, bench))
    daemon = owners[0].service.daemon_pid()
    return {
        "running": states.count("running"),
        "suspended": states.count("suspended"),
        "cannot": refused[0] if refused else "",
        "daemon_rss_mb": round(_rss(daemon) / MIB, 1),
        "list_ms": times.figures(),
    }


def lists(bench: Bench) -> bool:
    """Return whether a list succeeds."""
    return bool(listed(bench))


def listed(bench: Bench) -> list[dict[str, object]]:
    """Return an owner's boxes over HTTP; none if the request fails."""
    answer = bench.service.http("GET", "/v1/boxes", key=bench.key)
    found: list[dict[str, object]] = json.loads(answer.body) if answer.status == 200 else []
    return found


def churn(bench: Bench, boxes: int) -> dict[str, object]:
    """Create and remove boxes one after the other; return what they leave on the host."""
    state, daemon = bench.service.state_dir, bench.service.daemon_pid()
    bench.over_ssh("stays")
    made = Times()
    measured(made, 2, bench.new_box, after=bench.remove_made)
    before, rss = Footprint.of(state, daemon), _rss(daemon)
    made = Times()
    measured(made, boxes, bench.new_box, after=bench.remove_made)
    after = Footprint.of(state, daemon)
    bench.person.ssh("cli", "rm", "stays")
    return {
        "boxes": boxes,
        "left": after.more_than(before),
        "descriptors": [before.descriptors, after.descriptors],
        "daemon_rss_mb": [round(rss / MIB, 1), round(_rss(daemon) / MIB, 1)],
        "create_ms": made.figures(),
    }


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def report(result: dict[str, object], to: Path) -> None:
    """Print the table and write both files."""
    standing, churned = result["fleet"], result["churn"]
    assert isinstance(standing, dict)
    assert isinstance(churned, dict)
    boxes = f"{standing['running']} running, {standing['suspended']} suspended"
    times = standing["list_ms"]
    left = churned["left"]
    rows: list[tuple[str, ...]] = [
        ("measurement", "goal", "result"),
        (f"RSS of the daemon, {boxes}", RSS_GOAL, f"{standing['daemon_rss_mb']} MB"),
        (
            "list of one owner's boxes, p50 / p99",
            LIST_GOAL,
            f"{times['p50']} / {times['p99']} ms",
        ),
        (f"left by {churned['boxes']} boxes", "nothing", "; ".join(left) or "nothing"),
    ]
    if standing["cannot"]:
        rows.append(("suspended boxes", "", f"cannot: {standing['cannot']}"))
    write(to, "boxes_fleet", ["Many boxes on one host", "", *markdown(rows, left=3)], result)


if __name__ == "__main__":
    main()
