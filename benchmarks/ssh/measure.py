"""Compares the SSH server with Debian's sshd: `python -m benchmarks.ssh.measure [--quick]`.

Runs on its own service. The same client does the same work with both servers, in alternation. The
results go to `benchmarks/results`. `ssh.json` contains quantiles of `connect_ms` and medians of the
other figures, each with the figure of sshd and the ratio ours / sshd. `ssh.md` contains more rows,
and the processor time of the servers. Run it on an otherwise idle machine; it takes six minutes.

==============  ================================================================================
connect_ms      `ssh HOST 'echo x'`, from its start to the first byte of output
download_MBps   `scp` of a file, which is in the page cache, from the box
upload_MBps     `scp` of a file to the box
sftp_get_MBps   `get` with `sftp`
parallel_100_s  100 parallel `ssh HOST 'echo NUMBER'`, until the last has ended
==============  ================================================================================
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.boxes.measure import CALM, complain
from benchmarks.report import asked, machine
from benchmarks.ssh.report import report
from benchmarks.ssh.sshd import sshd
from benchmarks.ssh.workloads import FULL, QUICK, Limit, Side, Size, measure
from tests.e2e.service import Person, Service
from tests.harness.service.processes import processor_of_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOX = "live"
PLACE = "/tmp/bench"
LIMIT_S = 360.0
"""Time limit of the measurement in seconds. After it, each row has only one run."""
IN_MEMORY = Path("/dev/shm")


def main() -> None:
    """Measure and report."""
    quick, to = asked("ssh")
    facts = machine()
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boxd-bench-")))
        local = stack.enter_context(tempfile.TemporaryDirectory(dir=_roomy(size)))
        ours, person = stack.enter_context(_boxd(directory))
        beside = directory / "beside"
        server = stack.enter_context(sshd(beside, person.key.with_suffix(".pub")))
        (beside / "files").mkdir()
        meters = {"sshd": server.cpu_s}
        place = str(beside / "files")
        theirs = Side("sshd", server.port, "root", place, person.options, meters)
        found = measure((ours, theirs), size, Path(local), Limit(LIMIT_S))
    report(found, size, facts, to)


def _roomy(size: Size) -> Path | None:
    """Return the directory of the client's files: in memory if there is room for them."""
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > 3 * size.bytes:
        return IN_MEMORY
    return None


@contextmanager
def _boxd(directory: Path) -> Iterator[tuple[Side, Person]]:
    """Yield a service with one user and one box, and remove all of it afterwards."""
    # A template would be a second box.
    service = Service(directory / "state", f"{CALM} --no-templates")
    try:
        service.start()
        person = Person(service, directory / "home")
        person.run(BOX, f"mkdir {PLACE}")
        meters: dict[str, Callable[[], float]] = {
            "daemon": partial(processor_of_service, service.daemon_pid()),
            "agent": _cpu(_agent(person)),
        }
        yield Side("boxd", service.ssh_port, BOX, PLACE, person.options, meters), person
    finally:
        service.close()
        complain(service)


def _cpu(pid: int) -> Callable[[], float]:
    """Return a function for the processor time of a process without its children, in seconds."""
    process = psutil.Process(pid)

    def spent() -> float:
        times = process.cpu_times()
        return times.user + times.system

    return spent


def _agent(person: Person) -> int:
    """Return the pid of the agent of the only box."""
    (box,) = json.loads(person.run("cli", "ls --json"))
    return agent_of(box["id"])


def agent_of(box_id: str) -> int:
    """Return the pid of the agent of a box on this machine."""
    for process in psutil.process_iter():
        try:
            cgroup = Path(f"/proc/{process.pid}/cgroup").read_text()
            if box_id in cgroup and "box_guest" in " ".join(process.cmdline()):
                return process.pid
        except (OSError, psutil.NoSuchProcess):
            continue  # the process has ended
    raise RuntimeError("the box has no agent")


if __name__ == "__main__":
    main()
