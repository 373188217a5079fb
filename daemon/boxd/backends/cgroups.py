"""The host's cgroup hierarchies: v1, hybrid or v2. What they can cap, use, and removal."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from boxd.errors import BoxdError, Unavailable

REMOVE_TIMEOUT = 5.0
"""Seconds in which the processes of a killed cgroup must be gone."""
FREEZE_TIMEOUT = 10.0
"""Seconds in which all processes of a cgroup must stand still."""
SPAWN_TIMEOUT = 5.0
"""Seconds in which they are let go on again and again, until none waits for a vfork child."""
_SPAWNING = frozenset({"kernel_clone", "wait_for_vfork_done"})
"""Where in the kernel a process waits until its child has become another program."""
_FROZEN, _THAWED = "FROZEN", "THAWED"
NEEDED = frozenset({"cpu", "memory", "pids", "devices"})
_V1_CONTROLLERS = NEEDED | {"blkio", "cpuacct", "cpuset", "freezer", "hugetlb", "misc"}
_V1_CONTROLLERS |= {"net_cls", "net_prio", "perf_event", "rdma"}
_HANDED_DOWN = ("cpu", "memory", "pids")
_SWAP_MAX = "memory.swap.max"
SHARES_PER_CPU = 1024
"""The weight of one process outside of any cgroup."""
NANOSECONDS = 1_000_000_000
MICROSECONDS = 1_000_000


class Mode(StrEnum):
    """How the host mounts cgroups."""

    V1 = "v1"
    HYBRID = "hybrid"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the hierarchies are mounted: by controller in v1; "" is the unified one."""

    mode: Mode
    mounts: dict[str, Path]

    def roots(self) -> list[Path]:
        """Every hierarchy once."""
        return sorted(set(self.mounts.values()))

    def directory(self, controller: str, cgroup: str) -> Path:
        """The directory of a cgroup for one controller."""
        mount = self.mounts[""] if self.mode is Mode.V2 else self.mounts[controller]
        return mount / cgroup.lstrip("/")


@dataclass(frozen=True, slots=True)
class Usage:
    """Present use of one cgroup."""

    cpu_s: float
    memory_bytes: int
    pids: int


def parse_mounts(mountinfo: str) -> Layout:
    """Finds the hierarchies in the text of /proc/self/mountinfo: where they were mounted first.

    CRIU mounts them once more for a moment while it works.
    Raises Unavailable when there are none, or a v1 controller that boxes need is missing.
    """
    mounts: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        place = Path(left.split()[4])
        kind, _, options = right.split(maxsplit=2)
        if kind == "cgroup2":
            mounts.setdefault("", place)
        elif kind == "cgroup":
            for option in options.split(","):
                if option.startswith("name=") or option in _V1_CONTROLLERS:
                    mounts.setdefault(option, place)
    if not mounts:
        raise Unavailable("no cgroups are mounted; mount cgroup2 at /sys/fs/cgroup")
    if "" in mounts and not NEEDED & mounts.keys():
        # Some programs mount one of the old hierarchies beside it, for themselves.
        return Layout(Mode.V2, {"": mounts[""]})
    missing = NEEDED - mounts.keys()
    if missing:
        raise Unavailable(f"cgroup controllers are not mounted: {', '.join(sorted(missing))}")
    return Layout(Mode.HYBRID if "" in mounts else Mode.V1, mounts)


def detect() -> Layout:
    """The layout of this host. Raises Unavailable with a remedy."""
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
    """Whether swap can be capped: only where the kernel accounts for it.

    `parent` is a cgroup that `prepare_parent` has made; without one, any cgroup below the root
    tells it on v2, as the root itself has no such file.
    """
    if layout.mode is Mode.V2:
        if parent:
            return (layout.directory("", parent) / _SWAP_MAX).exists()
        children = list(layout.mounts[""].glob("*/memory.max"))
        return not children or any(p.with_name(_SWAP_MAX).exists() for p in children)
    return (layout.mounts["memory"] / "memory.memsw.limit_in_bytes").exists()


def pids_of(layout: Layout, cgroup: str, controller: str = "pids") -> list[int]:
    """Processes in a cgroup and below it; empty when it does not exist.

    `controller` says in which hierarchy of v1; v2 has one alone.
    """
    top = layout.directory(controller, cgroup)
    if not top.is_dir():
        return []
    found: list[int] = []
    for directory in [top, *_below(top)]:
        try:
            found += [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            continue
    return found


def usage(layout: Layout, cgroup: str) -> Usage:
    """Reads the counters; zeros when the cgroup does not exist (a stopped box)."""
    try:
        if layout.mode is Mode.V2:
            directory = layout.directory("", cgroup)
            stat = dict(line.split() for line in _read(directory / "cpu.stat").splitlines())
            return Usage(
                cpu_s=int(stat["usage_usec"]) / MICROSECONDS,
                memory_bytes=int(_read(directory / "memory.current")),
                pids=int(_read(directory / "pids.current")),
            )
        cpu = int(_read(layout.directory("cpuacct", cgroup) / "cpuacct.usage"))
        memory = int(_read(layout.directory("memory", cgroup) / "memory.usage_in_bytes"))
        pids = int(_read(layout.directory("pids", cgroup) / "pids.current"))
        return Usage(cpu_s=cpu / NANOSECONDS, memory_bytes=memory, pids=pids)
    except FileNotFoundError:
        return Usage(0.0, 0, 0)


async def freeze(layout: Layout, cgroup: str) -> None:
    """Has all processes of a cgroup stand still; returns when they do.

    None of them waits then for a child that has yet to become another program (vfork), if that
    comes about within SPAWN_TIMEOUT: who does stands still, but CRIU, which holds the child too,
    never gets hold of it.

    Raises BoxdError when they do not within FREEZE_TIMEOUT: a process that waits for a drive or
    a disk cannot be stopped before it is answered. They all go on then.
    """
    began, pause = time.monotonic(), 0.001
    while True:
        lasted = time.monotonic() - began
        if _set_frozen(layout, cgroup, wanted=True):
            held = pids_of(layout, cgroup, "freezer")  # those, and no others, stand still
            if lasted > SPAWN_TIMEOUT or not any(map(is_spawning, held)):
                return
            thaw(layout, cgroup)
        elif lasted > FREEZE_TIMEOUT:
            thaw(layout, cgroup)
            raise BoxdError("its processes do not stand still; one may be waiting for a drive")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.1)


def is_spawning(pid: int) -> bool:
    """Whether a process waits for its child in vfork(2), or in what is made of it."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text() in _SPAWNING
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_frozen(layout: Layout, cgroup: str) -> bool:
    """Whether its processes stand still, or are about to. False when it is absent."""
    try:
        if layout.mode is Mode.V2:
            return _read(layout.directory("", cgroup) / "cgroup.freeze") == "1"
        if "freezer" not in layout.mounts:
            return False
        return _read(layout.directory("freezer", cgroup) / "freezer.state") != _THAWED
    except FileNotFoundError:
        return False


def thaw(layout: Layout, cgroup: str) -> None:
    """Lets the frozen processes of a cgroup go on. No error if none is frozen, or it is absent."""
    if layout.mode is Mode.V2 or "freezer" in layout.mounts:
        with suppress(FileNotFoundError):
            _set_frozen(layout, cgroup, wanted=False)


def _set_frozen(layout: Layout, cgroup: str, *, wanted: bool) -> bool:
    """Asks for it; returns whether it has come about."""
    if layout.mode is Mode.V2:
        directory = layout.directory("", cgroup)
        _write(directory / "cgroup.freeze", "1" if wanted else "0")
        return f"frozen {int(wanted)}" in _read(directory / "cgroup.events").splitlines()
    if "freezer" not in layout.mounts:
        raise Unavailable("boxes can only be frozen where the freezer cgroup is mounted")
    state = layout.directory("freezer", cgroup) / "freezer.state"
    word = _FROZEN if wanted else _THAWED
    _write(state, word)
    return _read(state) == word


def prepare_parent(layout: Layout, cgroup: str, memory_bytes: int) -> None:
    """Makes the cgroup above all boxes and sets what they take together. Idempotent.

    Memory ends there before it ends on the host. On v1 its weight is that of one of the host's own
    processes per processor: with the default, that of a single one, any load beside the boxes
    takes most of what they need to answer (*measured* on 2 busy processors, exec in a box whose
    neighbour spins: p99 148 ms with the default, 74 ms with four times that, 347 with a quarter).
    Children of the root have a fair weight on v2. Raises Unavailable where the limit cannot be set.
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
                f"what all boxes take together cannot be bounded: {directory / name}: "
                f"{error.strerror}"
            ) from error


def _hand_down(root: Path) -> None:
    """Has the root of v2 give its controllers to the cgroups below it. Unavailable.

    runc does it as well, but with the first box, when the limit over all boxes is long set.
    """
    control = root / "cgroup.subtree_control"
    missing = set(_HANDED_DOWN) - set(_read(control).split())
    if not missing:
        return
    try:
        _write(control, " ".join(f"+{one}" for one in sorted(missing)))
    except OSError as error:
        busy = (
            "; processes are in the cgroup itself, as in a container: start the service with a "
            "cgroup namespace of the host (docker run --cgroupns=host), or have the container's "
            "init move itself into a cgroup below"
            if error.errno == errno.EBUSY
            else ""
        )
        raise Unavailable(
            f"the cgroup controllers {', '.join(sorted(missing))} cannot be handed to boxes: "
            f"{control}: {error.strerror}{busy}"
        ) from error


def exists(layout: Layout, cgroup: str) -> bool:
    """Whether it is there in any hierarchy."""
    return any((root / cgroup.lstrip("/")).exists() for root in layout.roots())


async def remove(layout: Layout, cgroup: str) -> None:
    """Removes a cgroup from every hierarchy. No error if it is absent.

    The kernel lets go of a cgroup a moment after its last process is gone, hence the bounded
    wait. Raises BoxdError when processes stay.
    """
    deadline = time.monotonic() + REMOVE_TIMEOUT
    pause = 0.001
    while True:
        left = [top for root in layout.roots() if not _rmdir(top := root / cgroup.lstrip("/"))]
        if not left:
            return
        if time.monotonic() > deadline:
            held = pids_of(layout, cgroup)
            raise BoxdError(f"cgroup {left[0]} cannot be removed; processes in it: {held}")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.1)


def _write(path: Path, word: str) -> None:
    """Makes no file: what has no cgroup raises FileNotFoundError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, word.encode())
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    return path.read_text().strip()


def _below(top: Path) -> list[Path]:
    """Directories below, inner ones first; without those that vanish meanwhile."""
    return [Path(directory) for directory, _, _ in os.walk(top, topdown=False)][:-1]


def _rmdir(top: Path) -> bool:
    """True when the cgroup is gone."""
    try:
        for directory in [*_below(top), top]:
            with suppress(FileNotFoundError):  # somebody else was faster
                directory.rmdir()
    except OSError:
        return False
    return True
