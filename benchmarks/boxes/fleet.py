"""Measures many boxes on its own service: `python -m benchmarks.boxes.fleet [--quick]`.

Writes `boxes_fleet.json` and `boxes_fleet.md` into `benchmarks/results`. They contain:

- the memory that each running, sleeping and woken box costs, with 200 sleeping boxes;
- the times of 50 boxes that are woken at the same moment;
- the time to wake a box by the memory that it uses;
- the time to list the boxes of an owner;
- the remains of 500 boxes that were created and removed, and of the fleet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.boxes.costs import MIB, Costs
from benchmarks.boxes.measure import CALM, Bench, complain
from benchmarks.boxes.waking import by_memory, mark, rush
from benchmarks.latency import CannotError, Times, measured
from benchmarks.report import RESULTS, directory_of, machine, markdown, revision, write
from tests.e2e.service import Person, Service
from tests.harness.service.footprint import Footprint
from tests.harness.service.processes import memory_of_service

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = "--max-running 200 --max-memory 400G --prepared-boxes 0"
"""Flags that let all boxes run on a smaller host. A prepared box would count as a remainder."""
RSS_GOAL, LIST_GOAL = "<= 300 MB", "<= 20 ms"
PARALLEL = 4
FIRST = "first"
"""A box of each owner that stays, so that its drive stays mounted."""


@dataclass(frozen=True)
class Size:
    """The amount of work. `running`, `asleep` and `woken` are boxes of each owner.

    An owner has at most 50 boxes.
    """

    owners: int
    running: int
    asleep: int
    woken: int
    lists: int
    churn: int
    memory: tuple[int, ...]
    """MiB of the boxes whose wakes are measured."""
    wakes: int


FULL = Size(5, 9, 40, 10, 100, 500, (64, 256, 512, 1024, 2048), 3)
QUICK = Size(2, 2, 4, 4, 5, 8, (64, 256), 1)


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
    to = directory_of(given.to, quick=given.quick)
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        service = Service(Path(name) / "state", f"{CALM} {LIMITS}")
        try:
            first = Bench.on(service, Path(name) / "home0")
            owners = [
                first,
                *(another(first, Path(name) / f"home{n}") for n in range(1, size.owners)),
            ]
            progress("churn")
            churned = churn(first, size.churn)
            progress("wakes by memory")
            sizes = by_memory(first, size.memory, size.wakes)
            standing = fleet(owners, size)
        finally:
            service.close()
            complain(service)
    result = {
        "fleet": standing,
        "wake_by_memory": [one.figures() for one in sizes],
        "churn": churned,
        "machine": {**facts, "load_after": round(os.getloadavg()[0], 2)},
        **revision(),
    }
    report(result, to)


def progress(what: str) -> None:
    """Print what is measured next."""
    print(f"{what} ...", file=sys.stderr, flush=True)


def another(bench: Bench, home: Path) -> Bench:
    """Create another owner on the same service."""
    person = Person(bench.service, home)
    return Bench(bench.service, person, person.new_key("bench"))


def fleet(owners: list[Bench], size: Size) -> dict[str, object]:
    """Create the boxes of all owners, wake some at once, and remove all. Measure each step."""
    service, state = owners[0].service, owners[0].service.state_dir
    daemon = service.daemon_pid()
    for bench in owners:
        bench.over_ssh(FIRST)
    empty, footprint = Costs.of(service), Footprint.of(state, daemon)
    progress("running boxes")
    refused = each(owners, partial(fill_running, number=size.running))
    running = [box["state"] for bench in owners for box in listed(bench)].count("running")
    full = Costs.of(service)
    progress("sleeping boxes")
    refused += each(owners, partial(fill_asleep, number=size.asleep))
    states = [box["state"] for bench in owners for box in listed(bench)]
    asleep = Costs.of(service)
    times = Times()
    for bench in owners:
        measured(times, size.lists, partial(lists, bench))
    mib = {"empty": empty.figures(), "running": full.figures(), "asleep": asleep.figures()}
    found: dict[str, object] = {
        "running": states.count("running"),
        "suspended": states.count("suspended"),
        "cannot": refused[0] if refused else "",
        "daemon_rss_mb": round(memory_of_service(daemon) / MIB, 1),
        "list_ms": times.figures(),
        "mib": mib,
        "mib_per_running_box": full.per_box(empty, running - len(owners) or 1),
        "mib_per_sleeping_box": asleep.per_box(full, states.count("suspended") or 1),
    }
    progress("wakes at once")
    sleepers = [(bench, name) for bench in owners for name in sleeping(bench)[: size.woken]]
    if sleepers:
        found["rush"] = rush(sleepers, asleep).figures()
    progress("removal")
    found["not_removed"] = each(owners, empty_out)
    found["left"] = Footprint.of(state, daemon).more_than(footprint)
    mib["removed"] = Costs.of(service).figures()
    return found


def each(owners: list[Bench], work: Callable[[Bench], str]) -> list[str]:
    """Do something for several owners at the same time; return the reasons of failures."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        return [why for why in pool.map(work, owners) if why]


def fill_running(bench: Bench, number: int) -> str:
    """Create running boxes."""
    made = [bench.over_ssh(f"awake{n}") for n in range(number)]
    return "" if all(made) else "a box does not start"


def fill_asleep(bench: Bench, number: int) -> str:
    """Create boxes and suspend them; return why one of them is not suspended."""
    why = ""
    for n in range(number):
        name = f"asleep{n}"
        created = bench.person.ssh(name, "true")
        if created.returncode != 0:
            why = f"box {name}: {created.stderr.decode().strip()}"
            continue
        why = mark(bench, name) or why
        try:
            if not bench.fell_asleep(name):
                why = f"box {name} does not fall asleep"
        except CannotError as error:
            return str(error)
    return why


def empty_out(bench: Bench) -> str:
    """Remove the boxes of an owner except the first."""
    names = [str(box["name"]) for box in listed(bench) if box["name"] != FIRST]
    failed = [name for name in names if bench.person.ssh("cli", "rm", name).returncode != 0]
    return f"not removed: {', '.join(failed)}" if failed else ""


def sleeping(bench: Bench) -> list[str]:
    """Return the names of an owner's sleeping boxes."""
    return [str(box["name"]) for box in listed(bench) if box["state"] == "suspended"]


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
    before, rss = Footprint.of(state, daemon), memory_of_service(daemon)
    made = Times()
    measured(made, boxes, bench.new_box, after=bench.remove_made)
    after = Footprint.of(state, daemon)
    bench.person.ssh("cli", "rm", "stays")
    return {
        "boxes": boxes,
        "left": after.more_than(before),
        "descriptors": [before.descriptors, after.descriptors],
        "daemon_rss_mb": [round(rss / MIB, 1), round(memory_of_service(daemon) / MIB, 1)],
        "create_ms": made.figures(),
    }


def report(result: dict[str, object], to: Path) -> None:
    """Print the tables and write both files."""
    standing, churned, sizes = result["fleet"], result["churn"], result["wake_by_memory"]
    assert isinstance(standing, dict)
    assert isinstance(churned, dict)
    assert isinstance(sizes, list)
    boxes = f"{standing['running']} running, {standing['suspended']} suspended"
    times = standing["list_ms"]
    rows: list[tuple[str, ...]] = [
        ("measurement", "goal", "result"),
        (f"RSS of the daemon, {boxes}", RSS_GOAL, f"{standing['daemon_rss_mb']} MB"),
        (
            "list of one owner's boxes, p50 / p99",
            LIST_GOAL,
            f"{times['p50']} / {times['p99']} ms",
        ),
        *_rush_rows(standing.get("rush")),
        (f"left by {churned['boxes']} boxes", "nothing", "; ".join(churned["left"]) or "nothing"),
        (f"left by {boxes}", "nothing", "; ".join(standing["left"]) or "nothing"),
    ]
    if standing["cannot"]:
        rows.append(("boxes that do not start or sleep", "none", str(standing["cannot"])))
    told = ", ".join(f"{name} {value}" for name, value in _machine(result).items())
    lines = [
        "Many boxes on one host",
        "",
        *markdown(rows, left=3),
        "",
        "Each box costs, in MiB. `host` is all memory that other programs lose, so it includes "
        "what they themselves took meanwhile. `agents` are the processes in the box, `helpers` "
        "those outside that serve it, `images` and `volume` its files.",
        "",
        *markdown(_cost_rows(standing)),
        "",
        "Wakes of a box by the memory that its process uses, until the first answer:",
        "",
        *markdown(_size_rows(sizes)),
        "",
        f"Machine: {told}",
    ]
    write(to, "boxes_fleet", lines, result)


def _machine(result: dict[str, object]) -> dict[str, object]:
    facts = result["machine"]
    assert isinstance(facts, dict)
    return {**facts, "commit": result["commit"], "date": result["date"]}


def _rush_rows(found: dict[str, Any] | None) -> list[tuple[str, ...]]:
    if found is None:
        return []
    times = found["first_answer_ms"]
    answers = f"{times['p50']} / {times['p95']} / {times['max']} ms"
    return [
        (f"{found['boxes']} wakes at once, first answer p50 / p95 / max", "", answers),
        ("the same, lost boxes", "none", ", ".join(found["lost"]) or "none"),
        (
            "the same, peak memory of the host for each box",
            "",
            f"{found['host_peak_mib_per_box']} MiB",
        ),
    ]


def _cost_rows(standing: dict[str, Any]) -> list[tuple[str, ...]]:
    kinds = [field.name for field in fields(Costs)]
    rows = [("box", *kinds)]
    states = {
        "running": standing["mib_per_running_box"],
        "sleeping": standing["mib_per_sleeping_box"],
        "woken, more than sleeping": standing.get("rush", {}).get("mib_per_box"),
    }
    for state, costs in states.items():
        if costs:
            rows.append((state, *(f"{costs[kind]:.1f}" for kind in kinds)))
    return rows


def _size_rows(sizes: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("MiB", "suspend p50 ms", "wake p50 ms", "survived")]
    for size in sizes:
        suspend, wake = size["suspend_ms"], size["wake_ms"]
        share = f"{wake['success']:.0%}"
        rows.append((str(size["mib"]), str(suspend["p50"]), str(wake["p50"]), share))
    return rows


if __name__ == "__main__":
    main()
