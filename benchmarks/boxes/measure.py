"""Measures latencies of boxes, on its own service.

Run `python -m benchmarks.boxes.measure [--runs N | --quick]`.

Writes `boxes.json` and `boxes.md` into `benchmarks/results`. The JSON is
`{NAME: {"p50", "p95", "p99", "success"}}`, in ms and as a share of 1. The table also shows the
machine and the goals. If the service refuses an operation, its figures are null and the table shows
the reason.

===============  ===================================================================
create_cold      ssh to a new box, `true`, without templates
create_template  the same from a template
suspend, resume  over HTTP, of a box with a process that uses 100 MB; the process survives
ssh_wake         ssh to the suspended box, `true`
exec             HTTP exec of `true` in a running box
fork             `snapshot fork` of the box with 100 MB; its process continues in the child
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
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.latency import CannotError, Times, measured
from benchmarks.report import RESULTS, machine, markdown, revision, write
from tests.e2e.service import Person, Service

GOALS = {
    "create_cold": "<= 700 ms",
    "create_template": "<= 400 ms",
    "suspend": "<= 400 ms",
    "resume": "<= 350 ms",
    "ssh_wake": "<= 700 ms",
    "exec": "<= 30 ms, p99 <= 5 times p50",
    "fork": "<= 900 ms",
}
"""Goals of the p50, in the order of the table."""
RUNS, QUICK = 100, 3
BATCH = 15
"""New boxes at a time. The number is below the tier's limit of running boxes."""
HELD = 100 << 20
"""Bytes of random memory in the box that is suspended, resumed and forked."""
NOTE = "/tmp/held"
"""A file in which the process in the box writes its pid when its memory is filled."""
HOLD_S = 60.0
HOLDER = (
    "import os, time; held = os.urandom({size}); "
    f"open('{NOTE}', 'w').write(str(os.getpid())); time.sleep(1e9)"
)
SETTLE_S = 10.0
"""Seconds that a box may count as in use after its last use."""
TEMPLATE_S = 60.0
"""Seconds from the first box until its template must exist."""
TEMPLATE_MADE = re.compile("template of image .* made")
TEMPLATE_FAILED = re.compile("no template of image .*")
"""Log messages of the service about templates."""
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

    def hold_memory(self, box: str) -> None:
        """Start a process in the box that fills memory, and wait until it is filled."""
        holder = shlex.quote(HOLDER.format(size=HELD))
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

    def outlived(self, box: str) -> bool:
        """Return the same; if the process is gone, start a new one."""
        if self.lives(box):
            return True
        self.hold_memory(box)
        return False


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.boxes.measure")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"attempts (default: {RUNS})")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK} attempts; results go to a new directory"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="directory of the results")
    given = parser.parse_args()
    facts = machine()
    runs = QUICK if given.quick else given.runs
    to = (
        Path(tempfile.mkdtemp(prefix="bench-")) if given.quick and given.to == RESULTS else given.to
    )
    found = {name: Times() for name in GOALS}
    with tempfile.TemporaryDirectory(prefix="boxd-bench-") as name:
        for mode, measure in (("--no-templates", cold), ("", warm)):
            # The second service uses the images of the first one, whose boxes are gone by then.
            service = Service(Path(name) / "state", f"{CALM} {mode}")
            try:
                home = Path(name) / f"home{len(mode)}"
                measure(Bench.on(service, home), found, runs)
            finally:
                service.close()
                complain(service)
    report(found, runs, facts, to)


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
    power(bench, found, runs)
    forks(bench, found["fork"], runs)


def create(bench: Bench, times: Times, runs: int) -> None:
    """Measure new boxes in batches."""
    for start in range(0, runs, BATCH):
        measured(times, min(BATCH, runs - start), bench.new_box)
        bench.remove_made()


def power(bench: Bench, found: dict[str, Times], runs: int) -> None:
    """Measure suspend and resume of the box with memory. An attempt that loses it has failed."""

    def asleep() -> bool:
        return bench.power("held", "suspend", "suspended")

    def awake() -> bool:
        return bench.power("held", "resume", "running")

    def fell_asleep() -> bool:
        """Suspend, and retry: the last user may release the box shortly after its answer."""
        end = time.monotonic() + SETTLE_S
        while not asleep():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def same() -> bool:
        return bench.outlived("held")

    def fresh() -> bool:
        return fell_asleep() and awake()

    measured(found["suspend"], runs, asleep, fresh, same)
    measured(found["resume"], runs, awake, fell_asleep, same)
    measured(found["ssh_wake"], runs, lambda: bench.over_ssh("held"), fell_asleep, same)


def forks(bench: Bench, times: Times, runs: int) -> None:
    """Measure forks of the box with memory. Each child is removed before the next fork."""

    def fork() -> bool:
        return bench.fork("held")

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
        f"Boxes: {runs} attempts each, one client, {version.split(',')[0].strip()}",
        "",
        *markdown(rows, left=2),
        "",
        f"Machine: {told}",
    ]
    write(to, "boxes", lines, {name: times.figures() for name, times in found.items()})


if __name__ == "__main__":
    main()
