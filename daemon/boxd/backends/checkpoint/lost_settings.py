"""Restores settings of processes and sockets that CRIU does not restore.

The settings are the processor affinity and I/O priority of threads, socket options, and the
IPC_RMID mark. The kernel removes System V shared memory with this mark after its last user. The
service reads the settings while the box is frozen, and stores them with its memory. After a
restore, the processes run for some milliseconds without these settings. The service skips a setting
that the kernel rejects. The file identifies threads and processes by their numbers inside the box.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host.descriptors import GONE, borrowed_socket, targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FILE = "forgotten.json"
"""File of the settings, in the directory of CRIU's images."""
MOST_SOCKETS = 10_000
"""Maximum number of sockets per box whose options are stored. The box is frozen while the service
reads them."""
_IOPRIO_SET, _IOPRIO_GET, _OF_PROCESS = 251, 252, 1
_CLASS_SHIFT, _BEST_EFFORT, _NO_PRIORITY = 13, 2, 0
_SHM_DEST, _IPC_RMID, _CLONE_NEWIPC = 0o1000, 0, 0x08000000
_LONGEST = 16
"""The longest value of an option, in bytes."""
_ANY, _TCP, _UDP = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_UDP
_IP, _IP6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
_COMMON = ((_ANY, 29), (_ANY, 35), (_ANY, 40), (_ANY, 60))
"""SO_TIMESTAMP, SO_TIMESTAMPNS, SO_RXQ_OVFL, SO_ZEROCOPY."""
_BY_FAMILY = {
    socket.AF_INET: tuple((_IP, option) for option in (10, 11, 12, 13, 32, 33, 34)),
    socket.AF_INET6: tuple((_IP6, option) for option in (16, 18, 19, 23, 25, 51, 66, 67)),
}
"""IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL, IP_RECVTOS, IP_MULTICAST_IF, _TTL, _LOOP;
IPV6_UNICAST_HOPS, _MULTICAST_HOPS, _MULTICAST_LOOP, _MTU_DISCOVER, _RECVERR, _RECVHOPLIMIT,
_RECVTCLASS, _TCLASS."""
_BY_PROTOCOL = {
    _TCP: tuple((_TCP, option) for option in (7, 8, 9, 13, 18, 23, 25)),
    _UDP: ((_UDP, 103), (_UDP, 104)),
}
"""TCP_SYNCNT, _LINGER2, _DEFER_ACCEPT, _CONGESTION, _USER_TIMEOUT, _FASTOPEN, _NOTSENT_LOWAT;
UDP_SEGMENT, UDP_GRO."""
_libc = ctypes.CDLL(None, use_errno=True)

Options = dict[tuple[int, int], bytes]
"""Values of socket options, by level and option."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread with a processor affinity or an I/O priority. Priority 0 means none."""

    process: int
    thread: int
    processors: list[int]
    priority: int


@dataclass(frozen=True, slots=True)
class Socket:
    """Socket options that differ from a new socket's: level, option, and value in hexadecimal."""

    process: int
    descriptor: int
    options: list[tuple[int, int, str]]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The settings of one box that CRIU does not restore."""

    threads: list[Thread] = field(default_factory=list)
    sockets: list[Socket] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)
    """Ids of System V shared memory that is removed with its last user (IPC_RMID)."""


def collect(pids: Iterable[int]) -> Forgotten:
    """Read the settings of the processes of a frozen box. Skips ended processes."""
    forgotten, defaults = Forgotten(), _Defaults()
    all_processors = os.sched_getaffinity(0)
    sockets: set[str] = set()
    for pid in _by_number(pids).values():
        forgotten.segments.extend(_removed_segments(pid))
        break  # all processes of a box share one IPC namespace
    for process, pid in _by_number(pids).items():
        for number, thread in _threads(pid).items():
            with suppress(OSError):
                processors, priority = os.sched_getaffinity(thread), _priority(thread)
                affinity = sorted(processors) if processors != all_processors else []
                if affinity or priority:
                    forgotten.threads.append(Thread(process, number, affinity, priority))
        for descriptor, target in targets(pid):
            is_new = target.startswith("socket:") and target not in sockets
            if is_new and len(sockets) < MOST_SOCKETS:
                sockets.add(target)
                with suppress(OSError):
                    if options := defaults.differences(pid, descriptor):
                        forgotten.sockets.append(Socket(process, descriptor, options))
    return forgotten


def write(images: Path, forgotten: Forgotten) -> None:
    """Store the settings with the images."""
    (images / FILE).write_text(json.dumps(asdict(forgotten)))


def read(images: Path) -> Forgotten:
    """Read the settings; empty for images of releases that stored none."""
    try:
        content = json.loads((images / FILE).read_text())
    except FileNotFoundError:
        return Forgotten()
    return Forgotten(
        [Thread(**thread) for thread in content["threads"]],
        [Socket(**sock) for sock in content["sockets"]],
        content["segments"],
    )


def restore(forgotten: Forgotten, pids: Iterable[int]) -> None:
    """Apply the settings to the processes of a box. Skips those that the kernel rejects."""
    if forgotten == Forgotten():
        return
    processes = _by_number(pids)
    for pid in list(processes.values())[:1]:
        _remove_segments(pid, forgotten.segments)
    with_threads = {thread.process for thread in forgotten.threads} & processes.keys()
    tasks = {process: _threads(processes[process]) for process in with_threads}
    for thread in forgotten.threads:
        task = tasks.get(thread.process, {}).get(thread.thread)
        if task is not None:
            with suppress(OSError):
                if thread.processors:
                    os.sched_setaffinity(task, thread.processors)
            if thread.priority:
                _libc.syscall(_IOPRIO_SET, _OF_PROCESS, task, thread.priority)
    for record in forgotten.sockets:
        if record.process in processes:
            with (
                suppress(OSError),
                borrowed_socket(processes[record.process], record.descriptor) as sock,
            ):
                _set(sock, record.options)


def _set(sock: socket.socket, options: list[tuple[int, int, str]]) -> None:
    for level, option, value in options:
        setting = bytes.fromhex(value)
        with suppress(OSError):
            if sock.getsockopt(level, option, _LONGEST) != setting:
                sock.setsockopt(level, option, setting)


def _removed_segments(pid: int) -> list[int]:
    segments: list[int] = []

    def read() -> None:
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            _, number, mode = line.split()[:3]
            if int(mode, 8) & _SHM_DEST:
                segments.append(int(number))

    _in_ipc_namespace(pid, read)
    return segments


def _remove_segments(pid: int, segments: list[int]) -> None:
    def remove() -> None:
        for number in segments:
            _libc.shmctl(number, _IPC_RMID, None)

    if segments:
        _in_ipc_namespace(pid, remove)


def _in_ipc_namespace(pid: int, step: Callable[[], None]) -> None:
    """Run `step` in the IPC namespace of a process, in a thread that ends afterwards."""

    def work() -> None:
        with suppress(*GONE):
            descriptor = os.open(f"/proc/{pid}/ns/ipc", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(descriptor, _CLONE_NEWIPC) == 0:
                    step()
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=work, name="ipc of a box")
    thread.start()
    thread.join()


class _Defaults:
    """Options of new sockets, cached by family, type and protocol."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Options] = {}

    def differences(self, pid: int, descriptor: int) -> list[tuple[int, int, str]]:
        """Return the options that differ from a new socket's.

        Raises OSError if the socket is closed.
        """
        with borrowed_socket(pid, descriptor) as sock:
            if sock.family not in _BY_FAMILY:
                return []
            kind = sock.family, sock.type, sock.proto
            if kind not in self._known:
                with socket.socket(*kind) as new:
                    self._known[kind] = _options(new)
            default = self._known[kind]
            return [
                (*key, value.hex())
                for key, value in _options(sock).items()
                if value != default.get(key)
            ]


def _options(sock: socket.socket) -> Options:
    options = {}
    for key in (*_COMMON, *_BY_FAMILY[sock.family], *_BY_PROTOCOL.get(sock.proto, ())):
        with suppress(OSError):
            options[key] = sock.getsockopt(*key, _LONGEST)
    return options


def _priority(thread: int) -> int:
    """Return the I/O priority of a thread, or 0 if the kernel derives it from the nice value."""
    priority = int(_libc.syscall(_IOPRIO_GET, _OF_PROCESS, thread))
    derived = (os.getpriority(os.PRIO_PROCESS, thread) + 20) // 5
    usual = (_NO_PRIORITY, _BEST_EFFORT << _CLASS_SHIFT | derived)
    return 0 if priority < 0 or priority in usual or not priority >> _CLASS_SHIFT else priority


def _by_number(pids: Iterable[int]) -> dict[int, int]:
    """Map the numbers of processes inside the box to host pids."""
    return dict(_numbers((pid, Path(f"/proc/{pid}")) for pid in pids))


def _threads(pid: int) -> dict[int, int]:
    """Map the numbers of a process's threads inside the box to host ids; {} if it has ended."""
    with suppress(*GONE):
        names = os.listdir(f"/proc/{pid}/task")
        return dict(_numbers((int(name), Path(f"/proc/{pid}/task/{name}")) for name in names))
    return {}


def _numbers(tasks: Iterable[tuple[int, Path]]) -> Iterator[tuple[int, int]]:
    for task, place in tasks:
        with suppress(*GONE):
            text = (place / "status").read_text(errors="replace")
            yield int(text.split("\nNSpid:", 1)[1].split("\n", 1)[0].split()[-1]), task
