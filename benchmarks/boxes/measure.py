"""Measures latencies of boxes, on its own service.

Run `python -m benchmarks.boxes.measure [--runs N | --quick] [--only NAME ...]`.

Writes `boxes.json` and `boxes.md` into `benchmarks/results`. The JSON is
`{NAME: {"p50", "p95", "p99", "success"}}`, in ms and as a share of 1. The table also shows the
machine and the goals. If the service refuses an operation, its figures are null and the table shows
the reason.

===============  ===================================================================
create_cold      ssh to a new box, `true`, without templates
create_template  the same from a template
create_pool      the same from a prepared box
suspend, resume  over HTTP, of a box with a process that uses 100 MB; the process survives. A
                 suspension ends when the memory is on the disk
suspend_frozen   the same until all processes of the box are frozen
ssh_wake         ssh to the suspended box, `true`
exec             HTTP exec of `true` in a running box
fork             `snapshot fork` of the box with 100 MB; its process continues in the child
suspend_2g,
resume_2g,
fork_2g          the same with a process that uses 2 GiB, in at most 5 attempts
===============  ===================================================================
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks.latency import CannotError, Times, measured
from benchmarks.report import RESULTS, machine, markdown, revision, write
from boxd.backends.host import cgroups
from boxd.backends.host.names import HostNames
from boxd.config import Config
from tests.e2e.service import Person, Service

GOALS = {
    "create_cold": "<= 700 ms",
    "create_template": "<= 400 ms",
    "create_pool": "<= 120 ms",
    "suspend": "",
    "suspend_frozen": "<= 200 ms",
    "resume": "<= 150 ms",
    "ssh_wake": "<= 220 ms",
    "exec": "<= 6 ms, p99 <= 5 times p50",
    "fork": "<= 350 ms",
    "suspend_2g": "",
    "resume_2g": "",
    "fork_2g": "",
}
"""Goals of the p50, in the order of the table. The goal of a suspension is the time until the box
uses no processor; boxes with 2 GiB have no goal."""
RUNS, QUICK, LARGE_RUNS = 100, 3, 5
BATCH = 15
"""New boxes at a time. The number is below the tier's limit of running boxes."""
HELD = 100 << 20
"""Bytes of random memory in the box that is suspended, resumed and forked."""
LARGE = 2 << 30
"""The same for the operations whose names end with `_2g`."""
ROOMY = "debian:medium"
"""Image and flavor of boxes with that much memory."""
NOTE = "/tmp/held"
"""A file in which the process in the box writes its pid when its memory is filled."""
HOLD_S = 60.0
HOLDER = (
    "import os, time; held = os.urandom({size}); "
    f"open('{NOTE}', 'w').write(str(os.getpid())); time.sleep(1e9)"
)
WATCH_S = 0.002
"""Seconds between two looks at the state of a box."""
SETTLE_S = 10.0
"""Seconds that a box may count as in use after its last use."""
TEMPLATE_S = 60.0
"""Seconds from the first box until its template must exist."""
TEMPLATE_MADE = re.compile("created a template of image .*")
TEMPLATE_FAILED = re.compile("cannot create a template of image .*")
"""Log messages of the service about templates."""
PREPARED, CLAIMED = "prepared a box of image", "prepared box claimed"
"""Log messages of the service about prepared boxes."""
CALM = "--idle-timeout 24h --idle-reap 48h"
"""Flags of a service that never suspends boxes by itself."""
TEXT = {"Content-Type": "text/plain"}


@dataclass
class Bench:
    """One service with one user, and names for new boxes."""

    service: Service
    person: Person
    key: str
    made: list[str] = field(default_factory=list)
    count: int = 0
    pid: str = ""
    """The pid, in its box, of the process that holds memory."""

    @classmethod
    def on(cls, service: Service, home: Path) -> Bench:
        """Start the service and create the user."""
        service.start()
        person = Person(service, home)
        return cls(service, person, person.new_key("bench"))

    def over_ssh(self, box: str) -> bool:
        """Run `ssh BOX true`; return whether it succeeded."""
        return self.person.ssh(box, "true").returncode == 0

    def new_box(self) -> bool:
        """Do the same with a new box."""
        self.count += 1
        self.made.append(f"new{self.count}")
        return self.over_ssh(self.made[-1])

    def remove_made(self) -> bool:
        """Remove the new boxes; return whether all are removed."""
        names, self.made = self.made, []
        left = [name for name in names if self.person.ssh("cli", "rm", name).returncode != 0]
        return not left

    def exec(self, box: str, command: str) -> str | None:
        """Run a command over HTTP; return its output, or None if it failed."""
        path = f"/v1/exec/{box}?stream=false"
        answer = self.service.http("POST", path, key=self.key, body=command.encode(), headers=TEXT)
        if answer.status != 200:
            return None
        done = json.loads(answer.body)
        return base64.b64decode(done["stdout"]).decode() if done["exit_code"] == 0 else None

    def power(self, box: str, verb: str, wanted: str) -> bool:
        """Suspend or resume over HTTP. Raises CannotError if the backend refuses it."""
        answer = self.service.http("POST", f"/v1/boxes/{box}/{verb}", key=self.key)
        if answer.status == 400:
            raise CannotError(answer.error)
        return answer.status == 200 and json.loads(answer.body)["state"] == wanted

    def fork(self, base: str) -> bool:
        """Fork a box. Raises CannotError if the service refuses it."""
        self.count += 1
        child = f"fork{self.count}"
        done = self.person.ssh("cli", "snapshot", "fork", base, child)
        if done.returncode != 0:
            raise CannotError(done.stderr.decode().strip().splitlines()[-1])
        self.made.append(child)
        return True

    def hold_memory(self, box: str, size: int = HELD) -> None:
        """Start a process in the box that fills memory, and wait until it is filled."""
        holder = shlex.quote(HOLDER.format(size=size))
        self.person.run(box, f"rm -f {NOTE}; setsid python3 -I -c {holder} </dev/null >&0 2>&0 &")
        end = time.monotonic() + HOLD_S
        while not (pid := self.exec(box, f"cat {NOTE}")):
            if time.monotonic() > end:
                raise RuntimeError("the process in the box has not filled its memory in time")
            time.sleep(0.05)
        self.pid = pid

    def lives(self, box: str) -> bool:
        """Return whether that process still runs in the box or its child. Wakes the box."""
        found = self.exec(box, f"tr '\\0' ' ' </proc/{self.pid}/cmdline")
        return found is not None and NOTE in found

    def outlived(self, box: str, size: int = HELD) -> bool:
        """Return the same; if the process is gone, start a new one."""
        if self.lives(box):
            return True
        self.hold_memory(box, size)
        return False

    def fell_asleep(self, box: str) -> bool:
        """Suspend, and retry: the last user may release the box shortly after its answer."""
        end = time.monotonic() + SETTLE_S
        while not self.power(box, "suspend", "suspended"):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boxes.measure")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"attempts (default: {RUNS})")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} attempts; results go to a new directory"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="directory of the results")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=GOALS,
        default=list(GOALS),
        metavar="NAME",
        help="measure only these, and others on the same service",
    )
    given = parser.parse_args()
    facts = machine()
    modes = [mode for mode in MODES if set(mode[2]) & set(given.only)]
    runs = QUICK if given.quick else given.runs
    to = (
        Path(tempfile.mkdtemp(prefix="bench-")) if given.quick and given.to == RESULTS else given.to
    )
    found = {name: Times() for name in GOALS if any(name in mode[2] for mode in modes)}
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        for mode, measure, _ in modes:
            # The second service uses the images of the first one, whose boxes are gone by then.
            service = Service(Path(name) / "state", f"{CALM} {mode}")
            try:
                home = Path(name) / measure.__name__
                measure(Bench.on(service, home), found, runs)
            finally:
                service.close()
                complain(service)
    report(found, runs, facts, to)


def pool(bench: Bench, found: dict[str, Times], runs: int) -> None:
    """Measure new boxes while the service has a prepared one. An earlier service had a template."""
    times = found["create_pool"]
    if not bench.over_ssh("live"):
        raise RuntimeError("the first box does not start")

    def is_ready() -> bool:
        """Remove the last box, and wait for the next prepared one."""
        if not bench.remove_made():
            return False
        end = time.monotonic() + TEMPLATE_S
        claims = lines_with(bench.service, CLAIMED)
        while lines_with(bench.service, PREPARED) <= claims:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    claims = lines_with(bench.service, CLAIMED)
    is_ready()
    measured(times, runs, bench.new_box, is_ready)
    bench.remove_made()
    if lines_with(bench.service, CLAIMED) - claims < runs:
        times.refused = "some boxes were not created from prepared ones"


def lines_with(service: Service, text: str) -> int:
    """Return the number of lines of the service's log that contain a text."""
    return sum(text in line for line in list(service.output))


def complain(service: Service) -> None:
    """Print warnings and errors of the service: they explain failed attempts."""
    for line in service.output:
        if " WARNING " in line or " ERROR " in line:
            print(line, end="", file=sys.stderr)


def cold(bench: Bench, found: dict[str, Times], runs: int) -> None:
    """Measure new boxes without templates."""
    create(bench, found["create_cold"], runs)


def warm(bench: Bench, found: dict[str, Times], runs: int) -> None:
    """Measure everything else."""
    if not bench.over_ssh("live"):
        raise RuntimeError("the first box does not start")
    if why := no_template(bench.service):
        found["create_template"].refused = why
    else:
        create(bench, found["create_template"], runs)
    measured(found["exec"], runs, lambda: bench.exec("live", "true") is not None)
    bench.hold_memory("held")
    power(bench, Held("held", HELD, "{}"), found, runs)
    measured(
        found["ssh_wake"],
        runs,
        lambda: bench.over_ssh("held"),
        lambda: bench.fell_asleep("held"),
        lambda: bench.outlived("held"),
    )
    forks(bench, Held("held", HELD, "{}"), found, runs)


def large(bench: Bench, found: dict[str, Times], runs: int) -> None:
    """Measure the box with 2 GiB."""
    runs = min(runs, LARGE_RUNS)
    if not bench.over_ssh(f"large:{ROOMY}"):
        raise RuntimeError("the large box does not start")
    bench.hold_memory("large", LARGE)
    power(bench, Held("large", LARGE, "{}_2g"), found, runs)
    forks(bench, Held("large", LARGE, "{}_2g"), found, runs)


def create(bench: Bench, times: Times, runs: int) -> None:
    """Measure new boxes in batches."""
    for start in range(0, runs, BATCH):
        measured(times, min(BATCH, runs - start), bench.new_box)
        bench.remove_made()


@dataclass(frozen=True)
class Held:
    """A box with a process that uses memory. `label` makes names of figures from operations."""

    box: str
    size: int
    label: str


def cgroup_of(bench: Bench, box: str) -> str:
    """Return the cgroup of a box."""
    state = bench.service.state_dir
    names = HostNames(Config(state_dir=state).instance, state.resolve())
    boxes = json.loads(bench.person.run("cli", "ls --json"))
    (box_id,) = [one["id"] for one in boxes if one["name"] == box]
    return names.cgroup(box_id)


class FrozenSince:
    """The time until all processes of a box are frozen, in ms, from the start of the context."""

    def __init__(self, cgroup: str) -> None:
        """`cgroup` is that of the box."""
        self._cgroup = cgroup
        self._layout = cgroups.detect()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.ms: float | None = None

    def __enter__(self) -> Self:
        """Start to watch."""
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while self.ms is None and not self._over.wait(WATCH_S):
            with suppress(OSError):
                if cgroups.is_frozen(self._layout, self._cgroup):
                    self.ms = (time.perf_counter() - self._start) * 1000


def power(bench: Bench, held: Held, found: dict[str, Times], runs: int) -> None:
    """Measure suspend and resume of a box with memory. An attempt that loses it has failed."""

    cgroup = cgroup_of(bench, held.box)
    frozen = found.get(held.label.format("suspend") + "_frozen", Times())

    def asleep() -> bool:
        with FrozenSince(cgroup) as since:
            done = bench.power(held.box, "suspend", "suspended")
        frozen.attempts += 1
        frozen.good += [since.ms] if done and since.ms is not None else []
        return done

    def awake() -> bool:
        return bench.power(held.box, "resume", "running")

    def fell_asleep() -> bool:
        return bench.fell_asleep(held.box)

    def same() -> bool:
        return bench.outlived(held.box, held.size)

    def fresh() -> bool:
        return fell_asleep() and awake()

    measured(found[held.label.format("suspend")], runs, asleep, fresh, same)
    measured(found[held.label.format("resume")], runs, awake, fell_asleep, same)


def forks(bench: Bench, held: Held, found: dict[str, Times], runs: int) -> None:
    """Measure forks of a box with memory. Each child is removed before the next fork."""

    def fork() -> bool:
        return bench.fork(held.box)

    times = found[held.label.format("fork")]
    measured(times, runs, fork, bench.remove_made, lambda: bench.lives(bench.made[-1]))
    bench.remove_made()


def no_template(service: Service) -> str:
    """Wait for the template of the first box; return the reason if there is none."""
    end = time.monotonic() + TEMPLATE_S
    while time.monotonic() < end:
        for line in service.output:
            if TEMPLATE_MADE.search(line):
                return ""
            if found := TEMPLATE_FAILED.search(line):
                return found[0]
        time.sleep(0.2)
    return f"the service created no template within {TEMPLATE_S:g} s"


def report(found: dict[str, Times], runs: int, facts: dict[str, object], to: Path) -> None:
    """Print the table and write both files."""
    version = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    rows: list[tuple[str, ...]] = [
        ("operation", "goal of p50", "p50 ms", "p95 ms", "p99 ms", "succeeded")
    ]
    rows += [times.row(name, GOALS[name]) for name, times in found.items()]
    told = ", ".join(f"{name} {value}" for name, value in {**facts, **revision()}.items())
    lines = [
        f"Boxes: at most {runs} attempts each, one client, {version.split(',')[0].strip()}",
        "",
        *markdown(rows, left=2),
        "",
        f"Machine: {told}",
    ]
    write(to, "boxes", lines, {name: times.figures() for name, times in found.items()})


MODES = (
    ("--no-templates", cold, ("create_cold",)),
    (
        "--prepared-boxes 0",
        warm,
        ("create_template", "suspend", "suspend_frozen", "resume", "ssh_wake", "exec", "fork"),
    ),
    ("--prepared-boxes 1", pool, ("create_pool",)),
    ("--prepared-boxes 0", large, ("suspend_2g", "resume_2g", "fork_2g")),
)
"""Flags of a service, what is measured on it, and the names of the figures."""


if __name__ == "__main__":
    main()
