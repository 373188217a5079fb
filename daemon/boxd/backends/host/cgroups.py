"""The host's cgroup hierarchies (v1, hybrid or v2): limits, usage, freezing and removal."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from boxd.errors import BoxdError, Unavailable

REMOVE_TIMEOUT = 5.0
"""Seconds within which the processes of a killed cgroup must end."""
FREEZE_TIMEOUT = 10.0
"""Seconds within which all processes of a cgroup must be frozen."""
SPAWN_TIMEOUT = 5.0
"""Seconds during which a freeze is undone and repeated, while a process waits for a vfork child."""
_SPAWNING = frozenset({"kernel_clone", "wait_for_vfork_done"})
"""Kernel functions in which a process waits until its child has executed another program."""
_FROZEN, _THAWED = "FROZEN", "THAWED"
NEEDED = frozenset({"cpu", "memory", "pids", "devices"})
_V1_CONTROLLERS = NEEDED | {"blkio", "cpuacct", "cpuset", "freezer", "hugetlb", "misc"}
_V1_CONTROLLERS |= {"net_cls", "net_prio", "perf_event", "rdma"}
_HANDED_DOWN = ("cpu", "memory", "pids")
_SWAP_MAX = "memory.swap.max"
SHARES_PER_CPU = 1024
"""The weight of one process outside any cgroup."""
NANOSECONDS = 1_000_000_000
MICROSECONDS = 1_000_000


class Mode(StrEnum):
    """How the host mounts cgroups."""

    V1 = "v1"
    HYBRID = "hybrid"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class Layout:
    """Mount points of the hierarchies, by controller in v1; the key "" is the unified hierarchy."""

    mode: Mode
    mounts: dict[str, Path]

    def roots(self) -> list[Path]:
        """Return the mount point of every hierarchy once."""
        return sorted(set(self.mounts.values()))

    def directory(self, controller: str, cgroup: str) -> Path:
        """Return the directory of a cgroup for one controller."""
        mount = self.mounts[""] if self.mode is Mode.V2 else self.mounts[controller]
        return mount / cgroup.lstrip("/")


@dataclass(frozen=True, slots=True)
class Usage:
    """Current resource usage of one cgroup."""

    cpu_s: float
    memory_bytes: int
    pids: int
    oom_kills: int = 0
    """Processes that the kernel killed because the cgroup's memory was full."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a cgroup: CPU time in each period, memory including swap, and threads."""

    cpu_quota_us: int
    cpu_period_us: int
    memory_bytes: int
    pids: int


def parse_mounts(mountinfo: str) -> Layout:
    """Find the first mount of each hierarchy in the text of /proc/self/mountinfo.

    CRIU mounts them again for a moment while it works, so the function ignores later mounts. Raises
    Unavailable if there are none, or if a v1 controller that boxes need is missing.
    """
    mounts: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        mount_part, _, filesystem_part = line.partition(" - ")
        place = Path(mount_part.split()[4])
        kind, _, options = filesystem_part.split(maxsplit=2)
        if kind == "cgroup2":
            mounts.setdefault("", place)
        elif kind == "cgroup":
            for option in options.split(","):
                if option.startswith("name=") or option in _V1_CONTROLLERS:
                    mounts.setdefault(option, place)
    if not mounts:
        raise Unavailable("no cgroups are mounted; mount cgroup2 at /sys/fs/cgroup")
    if "" in mounts and not NEEDED & mounts.keys():
        # Some programs mount a v1 hierarchy in addition to v2 for their own use.
        return Layout(Mode.V2, {"": mounts[""]})
    missing = NEEDED - mounts.keys()
    if missing:
        raise Unavailable(f"cgroup controllers are not mounted: {', '.join(sorted(missing))}")
    return Layout(Mode.HYBRID if "" in mounts else Mode.V1, mounts)


def detect() -> Layout:
    """Return the layout of this host. Raises Unavailable with a remedy."""
    if not Path("/proc/self/ns/cgroup").exists():
        raise Unavailable("this kernel has no cgroup namespaces; boxes need Linux 4.6 or newer")
    layout = parse_mounts(Path("/proc/self/mountinfo").read_text())
    if layout.mode is Mode.V2:
        offered = (layout.mounts[""] / "cgroup.controllers").read_text().split()
        missing = NEEDED - {"devices"} - set(offered)
        if missing:
            raise Unavailable(
                f"cgroup controllers are not offered by this kernel: {', '.join(sorted(missing))}"
            )
    return layout


def caps_swap(layout: Layout, parent: str = "") -> bool:
    """Return whether swap can be limited, which needs swap accounting in the kernel.

    `parent` is a cgroup made by `prepare_parent`. Without one, the function checks any cgroup below
    the root on v2, because the root itself does not have the file.
    """
    if layout.mode is Mode.V2:
        if parent:
            return (layout.directory("", parent) / _SWAP_MAX).exists()
        children = list(layout.mounts[""].glob("*/memory.max"))
        return not children or any(p.with_name(_SWAP_MAX).exists() for p in children)
    return (layout.mounts["memory"] / "memory.memsw.limit_in_bytes").exists()


def limit_tcp(layout: Layout, cgroup: str, limit: int) -> None:
    """Limit the bytes of unread and unsent data of TCP, which the memory limit of v1 excludes.

    With v2, the memory limit includes them, and this does nothing. runc does not set it.
    """
    if layout.mode is not Mode.V2:
        file = layout.directory("memory", cgroup) / "memory.kmem.tcp.limit_in_bytes"
        with suppress(FileNotFoundError):  # a kernel without it, or the box has ended
            file.write_text(str(limit))


def pids_of(layout: Layout, cgroup: str, controller: str = "pids") -> list[int]:
    """Return the processes in a cgroup and below it; empty if it does not exist.

    `controller` selects the hierarchy on v1; v2 has only one.
    """
    top = layout.directory(controller, cgroup)
    if not top.is_dir():
        return []
    pids: list[int] = []
    for directory in [top, *_below(top)]:
        try:
            pids += [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            continue
    return pids


def has_processes(layout: Layout, cgroup: str) -> bool:
    """Return whether a cgroup itself contains a process; cgroups below it are not checked.

    *Measured* on a busy machine: 60 us, compared with 150 for `pids_of`.
    """
    try:
        return bool(_read(layout.directory("pids", cgroup) / "cgroup.procs"))
    except FileNotFoundError:
        return False


def own_files(layout: Layout, listing: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Return the files through which another process joins the cgroups of this process."""
    files = []
    for line in listing.read_text().splitlines():
        _, controllers, cgroup = line.split(":", 2)
        if top := layout.mounts.get(controllers.split(",")[0]):
            files.append(top / cgroup.lstrip("/") / "cgroup.procs")
    return [file for file in files if file.exists()]


def usage(layout: Layout, cgroup: str) -> Usage:
    """Return the resource usage; zeros if the cgroup does not exist (a stopped box)."""
    try:
        if layout.mode is Mode.V2:
            directory = layout.directory("", cgroup)
            stat = dict(line.split() for line in _read(directory / "cpu.stat").splitlines())
            return Usage(
                cpu_s=int(stat["usage_usec"]) / MICROSECONDS,
                memory_bytes=int(_read(directory / "memory.current")),
                pids=int(_read(directory / "pids.current")),
                oom_kills=oom_kills(layout, cgroup),
            )
        cpu = int(_read(layout.directory("cpuacct", cgroup) / "cpuacct.usage"))
        memory = int(_read(layout.directory("memory", cgroup) / "memory.usage_in_bytes"))
        pids = int(_read(layout.directory("pids", cgroup) / "pids.current"))
        kills = oom_kills(layout, cgroup)
        return Usage(cpu / NANOSECONDS, memory, pids, kills)
    except FileNotFoundError:
        return Usage(0.0, 0, 0)


def oom_kills(layout: Layout, cgroup: str) -> int:
    """Return the number of processes killed because of the memory limit; 0 without a cgroup."""
    name = "memory.events" if layout.mode is Mode.V2 else "memory.oom_control"
    try:
        lines = _read(layout.directory("memory", cgroup) / name).splitlines()
    except FileNotFoundError:
        return 0
    # Kernels before 4.13 have no such counter.
    return int(dict(line.split() for line in lines).get("oom_kill", 0))


async def freeze(layout: Layout, cgroup: str) -> None:
    """Freeze all processes of a cgroup. Returns when they are frozen.

    A process that waits in vfork for its child can be frozen. But CRIU can never seize it while the
    freeze holds the child too. So the function repeats the freeze until no process waits in vfork,
    for at most SPAWN_TIMEOUT.

    Raises BoxdError if they are not frozen within FREEZE_TIMEOUT. A process that waits for a drive
    or a disk cannot be frozen before it gets an answer. All processes are then thawed.
    """
    start, pause = time.monotonic(), 0.001
    while True:
        elapsed = time.monotonic() - start
        if _set_frozen(layout, cgroup, freeze=True):
            frozen = pids_of(layout, cgroup, "freezer")  # exactly these processes are frozen
            if elapsed > SPAWN_TIMEOUT or not any(map(is_spawning, frozen)):
                if layout.mode is not Mode.V2:
                    _stop_again(frozen)
                return
            thaw(layout, cgroup)
        elif elapsed > FREEZE_TIMEOUT:
            thaw(layout, cgroup)
            raise BoxdError("its processes cannot be frozen; one may be waiting for a drive")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.1)


def is_spawning(pid: int) -> bool:
    """Return whether a process waits for its child in vfork(2) or a wrapper of it."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() in _SPAWNING
    except (FileNotFoundError, ProcessLookupError):
        return False


def _stop_again(pids: list[int]) -> None:
    """Replace the stop of stopped processes in a frozen v1 cgroup with a pending SIGSTOP.

    The kernel completes PTRACE_SEIZE of a stopped process only when that process runs. A frozen
    process never runs, so CRIU would wait forever. A frozen process accepts SIGCONT and SIGSTOP
    without executing an instruction. SIGSTOP removes the SIGCONT before a handler sees it. CRIU
    treats a process with a pending SIGSTOP as stopped.
    """
    for pid in filter(is_stopped, pids):
        for number in (signal.SIGCONT, signal.SIGSTOP):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process. A frozen process's state does not show it."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == "do_signal_stop"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_frozen(layout: Layout, cgroup: str) -> bool:
    """Return whether a cgroup is frozen, or is being frozen. False if it does not exist."""
    try:
        if layout.mode is Mode.V2:
            return _read(layout.directory("", cgroup) / "cgroup.freeze") == "1"
        if "freezer" not in layout.mounts:
            return False
        return _read(layout.directory("freezer", cgroup) / "freezer.state") != _THAWED
    except FileNotFoundError:
        return False


def thaw(layout: Layout, cgroup: str) -> None:
    """Thaw a cgroup. No error if it is not frozen or does not exist."""
    if layout.mode is Mode.V2 or "freezer" in layout.mounts:
        with suppress(FileNotFoundError):
            _set_frozen(layout, cgroup, freeze=False)


def _set_frozen(layout: Layout, cgroup: str, *, freeze: bool) -> bool:
    """Request a freeze or thaw; return whether it is complete."""
    if layout.mode is Mode.V2:
        directory = layout.directory("", cgroup)
        _write(directory / "cgroup.freeze", "1" if freeze else "0")
        return f"frozen {int(freeze)}" in _read(directory / "cgroup.events").splitlines()
    if "freezer" not in layout.mounts:
        raise Unavailable("boxes cannot be frozen: the freezer cgroup is not mounted; mount it")
    state = layout.directory("freezer", cgroup) / "freezer.state"
    word = _FROZEN if freeze else _THAWED
    _write(state, word)
    return _read(state) == word


def prepare_parent(layout: Layout, cgroup: str, memory_bytes: int) -> None:
    """Create the cgroup above all boxes and set their common limits. Idempotent.

    The memory limit keeps boxes from exhausting the host's memory. On v1, the weight is that of one
    host process per processor. The default weight equals a single process. With it, any other load
    on the host would take most of the CPU time that boxes need to answer. *Measured* on 2 busy
    processors, exec in a box whose neighbour spins: p99 148 ms with the default, 74 ms with four
    times that, 347 with a quarter. On v2, children of the root have a fair weight. Raises
    Unavailable if a limit cannot be set.
    """
    if layout.mode is Mode.V2:
        _hand_down(layout.mounts[""])
        settings = [("", "memory.max", memory_bytes)]
    else:
        weight = SHARES_PER_CPU * (os.cpu_count() or 1)
        settings = [
            ("cpu", "cpu.shares", weight),
            ("memory", "memory.limit_in_bytes", memory_bytes),
        ]
    for controller, name, value in settings:
        directory = layout.directory(controller, cgroup)
        directory.mkdir(exist_ok=True)
        try:
            _write(directory / name, f"{value}\n")
        except OSError as error:
            raise Unavailable(
                f"the common limit of all boxes cannot be set: {directory / name}: {error.strerror}"
            ) from error


def _hand_down(root: Path) -> None:
    """Enable the controllers for the cgroups below the v2 root. Raises Unavailable.

    runc does this too, but only with the first box. The limit of all boxes is set before that.
    """
    control = root / "cgroup.subtree_control"
    missing = set(_HANDED_DOWN) - set(_read(control).split())
    if not missing:
        return
    try:
        _write(control, " ".join(f"+{controller}" for controller in sorted(missing)))
    except OSError as error:
        busy = (
            "; processes are in the cgroup itself, as in a container: start the service with a "
            "cgroup namespace of the host (docker run --cgroupns=host), or have the container's "
            "init move itself into a cgroup below"
            if error.errno == errno.EBUSY
            else ""
        )
        raise Unavailable(
            f"the cgroup controllers {', '.join(sorted(missing))} cannot be enabled for boxes: "
            f"{control}: {error.strerror}{busy}"
        ) from error


def make_bounded(layout: Layout, parent: str, cgroup: str, bounds: Bounds) -> list[Path]:
    """Create a cgroup with limits below `parent`, for a helper process of a box. Idempotent.

    Returns its directories: one on v2, one for each controller on v1. Raises OSError, or
    Unavailable if v2 cannot enable the controllers.
    """
    memory, quota, period = bounds.memory_bytes, bounds.cpu_quota_us, bounds.cpu_period_us
    if layout.mode is Mode.V2:
        _hand_down(layout.directory("", parent))
        settings = [
            ("", "cpu.max", f"{quota} {period}"),
            ("", "memory.max", str(memory)),
            ("", "pids.max", str(bounds.pids)),
        ]
        swap = ("", _SWAP_MAX, "0")
    else:
        settings = [
            ("cpu", "cpu.cfs_period_us", str(period)),
            ("cpu", "cpu.cfs_quota_us", str(quota)),
            ("memory", "memory.limit_in_bytes", str(memory)),
            ("pids", "pids.max", str(bounds.pids)),
        ]
        swap = ("memory", "memory.memsw.limit_in_bytes", str(memory))
    for controller, name, value in settings:
        directory = layout.directory(controller, cgroup)
        directory.mkdir(parents=True, exist_ok=True)  # v1: the parent may not exist here yet
        _write(directory / name, value)
    with suppress(FileNotFoundError):  # the kernel does not account swap
        controller, name, value = swap
        _write(layout.directory(controller, cgroup) / name, value)
    return sorted({layout.directory(controller, cgroup) for controller, _, _ in settings})


def exists(layout: Layout, cgroup: str) -> bool:
    """Return whether the cgroup exists in any hierarchy."""
    return any((root / cgroup.lstrip("/")).exists() for root in layout.roots())


async def remove(layout: Layout, cgroup: str) -> None:
    """Remove a cgroup from every hierarchy. No error if it does not exist.

    The kernel releases a cgroup shortly after its last process has ended, so this waits for a
    bounded time. Raises BoxdError if processes remain.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT
    pause = 0.001
    while True:
        rest = [top for root in layout.roots() if not _rmdir(top := root / cgroup.lstrip("/"))]
        if not rest:
            return
        if time.monotonic() > deadline:
            pids = pids_of(layout, cgroup)
            raise BoxdError(f"cgroup {rest[0]} cannot be removed; processes in it: {pids}")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.1)


def _write(path: Path, word: str) -> None:
    """Write an existing file. Raises FileNotFoundError if the cgroup does not exist."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, word.encode())
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    return path.read_text().strip()


def _below(top: Path) -> list[Path]:
    """Return the directories below, inner ones first, except those removed meanwhile."""
    return [Path(directory) for directory, _, _ in os.walk(top, topdown=False)][:-1]


def _rmdir(top: Path) -> bool:
    """Remove a cgroup and those below it. Return whether that succeeded."""
    try:
        for directory in [*_below(top), top]:
            with suppress(FileNotFoundError):  # another process removed it first
                directory.rmdir()
    except OSError:
        return False
    return True
