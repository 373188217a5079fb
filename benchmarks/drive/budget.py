"""Measures the budget of an operation: the resources of our mount per unit of each small work.

`python -m benchmarks.drive.budget [--quick] [--repeat N] [--work NAME ...] [--out DIR]` writes
`budget.json` and `budget.md` into `benchmarks/results`. They contain FUSE requests, round trips to
PostgreSQL by function, object requests, processor time and context switches of the mount process,
each per unit of work. `benchmarks.drive.counted` counts them. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drive.costs import Cost, lines
from benchmarks.drive.counters import ASK
from benchmarks.peers.ours import OPTIONS, Ours
from benchmarks.report import RESULTS, directory_of, machine, revision, write
from benchmarks.stores import stores
from wrkfs.bench.client import answer
from wrkfs.bench.material import CACHE, prepare
from wrkfs.bench.measure import Plan, places
from wrkfs.bench.place import FULL as FULL_SIZE
from wrkfs.bench.place import QUICK as QUICK_SIZE
from wrkfs.bench.place import WorkloadFailed, place_values
from wrkfs.bench.workloads import ALL, Caches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.stores import Stores
    from wrkfs.bench.place import Place
    from wrkfs.bench.workloads import Workload

LARGE = {"seq_write_fsync", "seq_read_cold", "seq_read_warm"}
"""Works whose unit is a MiB. Their cost is bandwidth."""
WORKS = tuple(work for work in ALL if work.name not in LARGE)
SIZE = replace(FULL_SIZE, mib=64, tree=1000, wheels=5)
QUICK = replace(QUICK_SIZE, files=100, mib=4, fsyncs=20)
REPEAT, QUICK_REPEAT = 3, 1
HAND_OVER = 30.0
"""Seconds until the mount process must write its counters."""
POLL = 0.002
ROOT = Path(__file__).parents[2]


class Counted(Ours):
    """Our mount with counters."""

    def command(self) -> Sequence[str]:
        """Return the command of the counting mount."""
        words = list(super().command())
        at = words.index("box_guest.mount")
        words[at : at + 1] = ["benchmarks.drive.counted", str(self._counts)]
        return words

    def environment(self) -> Mapping[str, str]:
        """Return the environment, with the path of this package."""
        return {**super().environment(), "PYTHONPATH": str(ROOT)}

    def take(self) -> dict[str, Any]:
        """Return the counts since the last call, or since the mount. Raises WorkloadFailed."""
        self.check()
        assert self._process is not None
        self._counts.unlink(missing_ok=True)
        self._process.send_signal(ASK)
        deadline = time.monotonic() + HAND_OVER
        while not self._counts.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise WorkloadFailed(f"{self.name} did not write its counters in time")
            time.sleep(POLL)
        found: dict[str, Any] = json.loads(self._counts.read_text())
        return found

    @property
    def _counts(self) -> Path:
        return self._log.with_suffix(".counts")


def main() -> None:
    """Measure and report."""
    arguments = _arguments()
    quick = arguments.quick
    size, repeat = (QUICK, QUICK_REPEAT) if quick else (SIZE, REPEAT)
    repeat = arguments.repeat or repeat
    workloads = tuple(work for work in WORKS if not arguments.work or work.name in arguments.work)
    plan = Plan(
        size, prepare(CACHE.expanduser(), size, workloads), repeat, workloads, label="budget"
    )
    about = {"machine": machine(), **revision(), "quick": quick, "repeat": repeat}
    about |= {"size": asdict(size), "options": list(OPTIONS)}
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        directory = Path(name)
        with stores(directory / "stores") as where:
            costs = measure(where, directory, plan, _tell)
    found = {**about, "works": {work: cost.figures() for work, cost in costs.items()}}
    write(directory_of(arguments.out, quick=quick), "budget", lines(found), found)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drive.budget")
    add = parser.add_argument
    names = [work.name for work in WORKS]
    add("--quick", action="store_true", help=f"small works, {QUICK_REPEAT} repetition")
    add("--repeat", type=int, help=f"repetitions (default: {REPEAT})")
    add(
        "--work",
        action="extend",
        nargs="+",
        choices=names,
        metavar="NAME",
        help="measure only these works",
    )
    add("--out", type=Path, default=RESULTS, help="directory of the results")
    return parser.parse_args()


def measure(
    where: Stores, directory: Path, plan: Plan, tell: Callable[[str], None]
) -> dict[str, Cost]:
    """Measure each work in a mount of a new volume. A failed work does not stop the others."""
    costs = {work.name: Cost(work.unit) for work in plan.workloads}
    mount = Counted(where.volume(), directory)
    mount.mount()
    try:
        for turn in range(plan.repeat):
            for work in plan.workloads:
                tell(f"{turn + 1}/{plan.repeat} {work.name}")
                place = places(mount.path, plan, turn)[0]
                try:
                    _once(where, mount, work, place, costs[work.name])
                except (WorkloadFailed, OSError) as error:
                    costs[work.name].errors.append(str(error))
                    mount.drop_caches()
    finally:
        mount.unmount()
    return costs


def _once(where: Stores, mount: Counted, work: Workload, place: Place, cost: Cost) -> None:
    """Do one repetition of one work."""
    _step("have", work, place)
    if work.caches is Caches.COLD:
        mount.drop_caches()
    elif work.caches is Caches.WARM:
        _step("do", work, place)
    mount.take()
    before = _processor_time(where)
    done = _step("do", work, place)
    after = _processor_time(where)
    found = mount.take()
    # Processes that have ended in the meantime are not included.
    served = sum(spent - before.get(pid, 0) for pid, spent in after.items())
    cost.add(done["count"], done["end"] - done["start"], served / 1e9, found)


def _step(step: str, work: Workload, place: Place) -> dict[str, Any]:
    done = answer({"step": step, "work": work.name, "place": place_values(place)})
    if "error" in done:
        raise WorkloadFailed(done["error"])
    return done


def _processor_time(where: Stores) -> dict[int, int]:
    """Return the run time of each process of PostgreSQL in nanoseconds."""
    found = {}
    for pid in where.database_pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return found


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
