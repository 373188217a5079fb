"""Finds what prevents a checkpoint of a frozen box, before CRIU starts.

CRIU loses these things silently, hangs on them, or rejects them with an error that names no
process. `find` runs before the dump, so the refusal is quick and names a process. It reads only
/proc. The processes are frozen, so the result stays true until the dump. The figures are *measured*
with CRIU 4.3: a write lease delays a dump by 45 s, a traced process by 10 s.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host import id_maps
from boxd.backends.host.descriptors import GONE, count, referring
from boxd.log import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CAP_SYS_RESOURCE = 24
LACKS_SYS_RESOURCE = (
    "the service lacks CAP_SYS_RESOURCE, without which CRIU cannot read a process's limits"
)
MOST_DESCRIPTORS = 200_000
"""Maximum number of open descriptors per box. The service reads each four times, which takes 18 us
in all (*measured*, busy machine). A copy after a fork costs a box 8 bytes. Without the limit, 512
processes could keep the service busy for 10 minutes.
"""
_AWAKE = "the box stays awake"
_KCMP, _KCMP_TABLES = 312, (2, 3)
"""Number of the system call kcmp, and its types for descriptors (KCMP_FILES) and for the working
directory (KCMP_FS)."""
_SEMAPHORE = re.compile(r"^eventfd-semaphore:\s*1$", re.MULTILINE)
_libc = ctypes.CDLL(None, use_errno=True)
_LEASE = re.compile(r"^\d+:\s+LEASE\s+\w+\s+\w+\s+(?P<pid>\d+)\s", re.MULTILINE)
_HALF_CLOSED = frozenset({"04", "05", "08", "09", "0B"})
"""States FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK and CLOSING in /proc/net/tcp."""
_LISTEN = "0A"
_CONNECTING = "02"
"""State in /proc/net/unix."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a box. `pid` is its number inside the box."""

    name: str
    pid: int
    tracer: int
    """Pid on the host of the process that traces this one; 0 if none does."""
    ids: frozenset[str]
    """Its user and group ids."""
    ended: bool = False
    """Whether the first thread of the process is a zombie."""

    def __str__(self) -> str:
        return f"`{self.name}` (pid {self.pid})"


def find(pids: Iterable[int]) -> str:
    """Return a sentence about the first obstacle in a frozen box, or "" if there is none.

    `connected` finds those of TCP.
    """
    processes = dict(_processes(pids))
    if not processes:
        return ""
    return (
        _traced(processes)
        or _leased(processes, Path("/proc/locks").read_text())
        or _foreign(processes)
        or _crowded(processes)
        or _queued(processes)
        or _changed(processes)
        or _apart(processes)
        or _counting(processes)
        or _at_terminal(processes)
    )


def tables(pid: int, *names: str) -> list[str]:
    """Return tables of sockets in the network of a process: `tcp`, `tcp6`, `unix`.

    Skips those that do not exist. *Measured*: 4 ms for each of TCP, with or without connections.
    """
    texts = []
    for table in names:
        with suppress(*GONE):
            texts.append(Path(f"/proc/{pid}/net/{table}").read_text())
    return texts


def connected(tables: Iterable[str]) -> str:
    """Return a sentence about a TCP connection that prevents a checkpoint, or "" if none does.

    `tables` are as in `half_closed_ports`. Under load, the state often lasts only for a moment.
    """
    tables = list(tables)
    for ports, trouble in (
        (half_closed_ports(tables), "is closed in one direction"),
        (jammed_ports(tables), "has data that its receiver has not taken"),
    ):
        if ports:
            return (
                f"a TCP connection within the box (port {min(ports)}) {trouble}. End the programs "
                f"at its ends, or wait; {_AWAKE}"
            )
    if ports := waiting_ports(tables):
        return (
            f"a TCP connection waits for a program to accept it (port {min(ports)}). Wait, or end "
            f"the program; {_AWAKE}"
        )
    return ""


def name(pid: int) -> str:
    """Return the name and pid of a process for messages to users."""
    return str(dict(_processes([pid])).get(pid, "a program"))


def may_read_limits() -> bool:
    """Return whether the service has CAP_SYS_RESOURCE."""
    status = _fields(Path("/proc/self/status").read_text())
    return bool(int(status["CapEff"], 16) >> CAP_SYS_RESOURCE & 1)


def parse_process(status: str) -> Process:
    """Parse the text of /proc/PID/status."""
    fields = _fields(status)
    return Process(
        name=escape(fields["Name"]),
        pid=int(fields["NSpid"].split()[-1]),
        tracer=int(fields["TracerPid"]),
        ids=frozenset((fields["Uid"] + "\t" + fields["Gid"]).split()),
        ended=fields["State"].startswith("Z"),
    )


def lease_holders(locks: str) -> set[int]:
    """Return the host pids of processes with a lease on a file, from the text of /proc/locks."""
    return {int(match["pid"]) for match in _LEASE.finditer(locks)}


def half_closed_ports(tables: Iterable[str]) -> set[int]:
    """Return ports of half-closed TCP connections that have both ends in the box's network.

    `tables` are the texts of /proc/net/tcp and /proc/net/tcp6. CRIU restores both ends, but then
    the direction that was open carries no data. An end without a process has inode 0. Such
    connections do not count, because no process can send on them.
    """
    return {_port(row) for row in _inner(tables) if row[3] in _HALF_CLOSED}


def jammed_ports(tables: Iterable[str]) -> set[int]:
    """Return ports of TCP connections inside the box with data that is not acknowledged.

    Either the receiver has no room, or it acknowledges later (at most 0.2 s). CRIU writes this data
    before it restores the receiver, so the restore fails.
    """
    return {_port(row) for row in _inner(tables) if int(row[4].partition(":")[0], 16)}


def waiting_ports(tables: Iterable[str]) -> set[int]:
    """Return ports of servers that have connections to accept. CRIU rejects such connections."""
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return {_port(row) for row in rows if row[3] == _LISTEN and int(row[4].partition(":")[2], 16)}


def unaccepted(table: str) -> int:
    """Return the number of unix connections that no program has accepted.

    `table` is the text of /proc/net/unix. The server's end of such a connection has inode 0.
    """
    rows = (line.split() for line in table.splitlines()[1:])
    return sum(row[5:7] == [_CONNECTING, "0"] for row in rows)


def _inner(tables: Iterable[str]) -> list[list[str]]:
    """Return the rows of connections whose ends are both in this network and have a process."""
    lines = [line.split() for table in tables for line in table.splitlines()[1:]]
    rows = [line for line in lines if line[9] != "0"]
    ends = {(row[1], row[2]) for row in rows}
    return [row for row in rows if (row[2], row[1]) in ends]


def _port(row: list[str]) -> int:
    return int(row[1].rpartition(":")[2], 16)


def _processes(pids: Iterable[int]) -> Iterable[tuple[int, Process]]:
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            yield pid, parse_process(Path(f"/proc/{pid}/status").read_text(errors="replace"))


def _fields(status: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def _traced(processes: Mapping[int, Process]) -> str:
    for process in processes.values():
        if process.tracer:
            tracer = processes.get(process.tracer, "a process")
            return f"{tracer} is tracing {process}. Stop it, or wait; {_AWAKE}"
    return ""


def _leased(processes: Mapping[int, Process], locks: str) -> str:
    for pid in sorted(lease_holders(locks) & processes.keys()):
        return f"{processes[pid]} holds a lease on a file. Stop it, or wait; {_AWAKE}"
    return ""


def _foreign(processes: Mapping[int, Process]) -> str:
    """Find a process of another user, if CRIU may not read its limits."""
    # The service has all capabilities in the user namespaces that it created.
    foreign = [
        process
        for pid, process in processes.items()
        if process.ids != {"0"} and id_maps.of_process(pid) is None
    ]
    if not foreign or may_read_limits():
        return ""
    return (
        f"{foreign[0]} does not run as root, and {LACKS_SYS_RESOURCE}. Stop it, or ask the "
        f"operator to grant the capability; {_AWAKE}"
    )


def is_crowded(pids: Iterable[int]) -> bool:
    """Return whether processes have more descriptors than the service reads in a frozen box."""
    return sum(map(count, pids)) > MOST_DESCRIPTORS


def _crowded(processes: Iterable[int]) -> str:
    if not is_crowded(processes):
        return ""
    return (
        f"its processes have more than {MOST_DESCRIPTORS:,} files open together. Close some, or "
        f"end a process; {_AWAKE}"
    )


def _queued(processes: Mapping[int, Process]) -> str:
    """Find POSIX message queues. CRIU's refusal does not name them."""
    for pid, process in processes.items():
        if process.pid == 1:
            with suppress(*GONE, NotADirectoryError):
                if _names_beneath(f"/proc/{pid}/root", "dev", "mqueue"):
                    return f"the box has a POSIX message queue. Remove it (/dev/mqueue); {_AWAKE}"
    return ""


def _names_beneath(root: str, *parts: str) -> list[str]:
    """Return the names in a directory of a box. Raises OSError if a part of its path is a link.

    Root of the host would follow the link on the host.
    """
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        above = here
        try:
            here = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    try:
        return os.listdir(here)
    finally:
        os.close(here)


def _changed(processes: Mapping[int, Process]) -> str:
    """Find a process with a personality (setarch). CRIU does not restore it."""
    for pid, process in processes.items():
        with suppress(*GONE):
            if int(Path(f"/proc/{pid}/personality").read_text(), 16):
                return f"{process} runs under a personality (setarch). End it; {_AWAKE}"
    return ""


def _apart(processes: Mapping[int, Process]) -> str:
    """Find a thread with its own descriptors or working directory.

    CRIU restores the thread with those of its process.
    """
    for pid, process in processes.items():
        with suppress(*GONE):
            threads = {int(name) for name in os.listdir(f"/proc/{pid}/task")} - {pid}
            if process.ended:
                continue  # CRIU rejects a zombie that has other threads
            if any(_differs(pid, thread) for thread in threads):
                return (
                    f"a thread of {process} has open files or a working directory of its own "
                    f"(unshare). End it; {_AWAKE}"
                )
    return ""


def _differs(pid: int, thread: int) -> bool:
    """Return whether two tasks have different tables. False if a task has ended."""
    return any(_libc.syscall(_KCMP, pid, thread, kind, 0, 0) > 0 for kind in _KCMP_TABLES)


def _counting(processes: Mapping[int, Process]) -> str:
    """Find an eventfd in semaphore mode (EFD_SEMAPHORE). CRIU restores it as an ordinary one."""
    for pid, process in processes.items():
        for descriptor in referring(pid, "anon_inode:[eventfd]"):
            with suppress(*GONE):
                text = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
                if _SEMAPHORE.search(text):
                    return f"{process} has an eventfd in semaphore mode open. End it; {_AWAKE}"
    return ""


def _at_terminal(processes: Mapping[int, Process]) -> str:
    """Find a program that has its terminal open as /dev/tty, such as an interactive dash.

    CRIU rejects it without the name of the program.
    """
    for pid, process in processes.items():
        if next(referring(pid, "/dev/tty"), None) is not None:
            return f"{process} has its terminal open as /dev/tty. Quit it; {_AWAKE}"
    return ""
