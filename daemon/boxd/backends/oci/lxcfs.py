"""Shows boxes their own size in kernel files: one lxcfs process for each running box.

`free`, `top`, `uptime` and the C library read /proc and /sys, which show the whole host. lxcfs
answers each read from the limits and counters of the reader's cgroup. Its files are bind-mounted in
the box, so programs need no change.

Each box has a separate lxcfs in a separate cgroup, because the box decides how much work lxcfs
does. *Measured* with lxcfs 5.0.3 on two processors: a read costs lxcfs 0.2 ms of CPU time, four
times the reader's cost. Each open descriptor holds 1 to 2 KB that no limit of the box counts. With
a shared lxcfs, one box could take the host's CPU time and memory, or break the files of all other
boxes. An idle lxcfs takes 0.45 MB (PSS; 2.6 MB RSS) and no CPU time.

The only record is on the host: a live process in the cgroup of a box, and the box's mount. lxcfs
outlives the service, and the next service adopts it. When lxcfs dies, reads in its box fail with
ENOTCONN until `lost` returns the box and the backend mounts its files again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host import cgroups, mounts, processes
from boxd.backends.host.programs import unpacked
from boxd.backends.host.run import ENVIRONMENT, CommandFailed, run, run_silent
from boxd.errors import BoxdError, Unavailable

if TYPE_CHECKING:
    from boxd.backends.host.names import HostNames

PREFIX = unpacked("lxcfs")
"""The directory into which `scripts/lxcfs` unpacks lxcfs."""
OLDEST = (5, 0)
PLACES = (
    "/proc/cpuinfo",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/sys/devices/system/cpu/online",
)
"""Kernel files that show a box its own size. lxcfs serves them below the same paths.

/proc/uptime shows the host's uptime. `ps` subtracts the start times of processes from it, and these
count from the boot of the host. With the uptime of the box, `ps -o etime` shows 441077233 days for
a process of 2 s, and %CPU is always 0. A time namespace would change both, but needs runc 1.2."""
KIND = "fuse.lxcfs"
REMEDY = "run scripts/lxcfs, or install lxcfs 5.0 or newer"
CONSEQUENCE = "boxes see the processors and memory of the host in /proc"
BOUNDS = cgroups.Bounds(
    cpu_quota_us=10_000, cpu_period_us=100_000, memory_bytes=32 * 1024 * 1024, pids=64
)
"""Limits of one lxcfs. A tenth of a processor is enough for 300 to 500 reads a second."""
START_TIMEOUT = 10.0
"""Seconds until the files must exist."""
RETRY_DELAYS = (0.0, 1.0, 5.0, 20.0, 60.0)
"""Seconds to wait before each restart of a dead lxcfs; the last delay repeats."""
STABLE_AFTER = 120.0
"""Seconds without a restart after which the delays start from the beginning."""
_POLL = 0.002
_MOUNTINFO = Path("/proc/self/mountinfo")
_VERSION = re.compile(r'^"?(\d+)\.(\d+)')
_OPTIONS = ("-f", "--enable-cfs", "--enable-loadavg", "-p")
"""Show the CPUs of the quota instead of the host's; show the load of the box only; the pid file."""
_LAUNCH = 'for one in $1; do echo 0 >"$one/cgroup.procs"; done; shift; "$@" &'
"""The shell enters the cgroups before it starts lxcfs, so lxcfs never runs outside them."""
_RIGHTS = (
    "setpriv",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all,+dac_read_search,+sys_admin,+sys_chroot,+sys_ptrace",
)
"""lxcfs serves a FUSE mount and looks up first processes of pid namespaces. Nothing else."""
_log = logging.getLogger(__name__)


async def find(path: str = ENVIRONMENT["PATH"], prefix: Path = PREFIX) -> Path:
    """Return the first lxcfs that is new enough. Raises Unavailable, which names older ones."""
    reason = "lxcfs is not installed"
    for place in (shutil.which("lxcfs", path=path), shutil.which(prefix / "bin" / "lxcfs")):
        if place is None:
            continue
        match = _VERSION.match(await _version(place))
        if match is None:
            reason = f"{place} does not run"
        elif (int(match[1]), int(match[2])) < OLDEST:
            reason = f"{place} is version {match[1]}.{match[2]}"
        else:
            return Path(place)
    raise Unavailable(reason)


async def _version(program: str) -> str:
    """Return a program's version text. lxcfs prints it to the error output."""
    try:
        return await run("sh", "-c", 'exec "$0" --version 2>&1', program)
    except CommandFailed:
        return ""


class Lxcfs:
    """The lxcfs processes of an installation.

    The backend serialises the calls for each box. `_boxes` and `_starting` change only between two
    awaits.
    """

    def __init__(self, names: HostNames) -> None:
        self._names = names
        self._layout: cgroups.Layout | None = None
        self._program: Path | None = None
        self._boxes: dict[str, Retries] = {}
        self._starting: dict[str, asyncio.Task[bool]] = {}

    async def setup(self, layout: cgroups.Layout) -> None:
        """Find the program. Without one, the service logs a warning and continues."""
        self._layout = layout
        try:
            self._program = await find()
        except BoxdError as error:
            _log.warning("%s: %s; %s", error, CONSEQUENCE, REMEDY)

    @property
    def is_available(self) -> bool:
        """Whether there is an lxcfs program for boxes."""
        return self._program is not None

    def files(self, box_id: str) -> dict[str, Path]:
        """Return, for each of PLACES, the host's file that reports the limits of the box."""
        return {place: self._place(box_id) / place.lstrip("/") for place in PLACES}

    def serves(self, box_id: str) -> bool:
        """Return whether the box's lxcfs is alive and its files exist."""
        return bool(self._pids(box_id)) and self._device(box_id) is not None

    def is_there(self, box_id: str) -> bool:
        """Return whether there is anything for `end` to remove."""
        return bool(self._pids(box_id)) or self._device(box_id) is not None

    async def adopt(self, box_id: str, mountinfo: Path) -> None:
        """Watch the lxcfs of a box that an earlier service started. `mountinfo` is the box's table.

        That service may have died before it mounted the files of a new lxcfs in the box. In that
        case the method ends that lxcfs, so that `lost` returns the box.
        """
        self._watch(box_id)
        if mounts.device_at(mountinfo, PLACES[-1]) != self._device(box_id):
            await self.discard(box_id)

    def begin(self, box_id: str) -> None:
        """Start the lxcfs of a box in the background, unless it is alive; `ready` waits for it."""
        if self._program is not None and box_id not in self._starting:
            self._starting[box_id] = asyncio.create_task(
                self._start(self._program, box_id), name=f"start lxcfs of {box_id}"
            )

    async def ready(self, box_id: str) -> bool:
        """Wait for the start that `begin` began. Return whether the box has its files.

        A failure is logged and does not stop the box from starting.
        """
        task = self._starting.get(box_id)
        if task is None:
            return self.serves(box_id)
        try:
            return await asyncio.shield(task)
        finally:
            if task.done():
                self._starting.pop(box_id, None)

    async def end(self, box_id: str) -> None:
        """End the lxcfs of a box and remove its mount. No error if there is none."""
        self._boxes.pop(box_id, None)
        if task := self._starting.pop(box_id, None):
            task.cancel()
            await asyncio.wait([task])
        await self._clear(box_id)

    async def discard(self, box_id: str) -> None:
        """End an lxcfs whose files are not mounted in the box. `lost` then returns the box."""
        await self._clear(box_id)

    def lost(self) -> list[str]:
        """Return the boxes whose lxcfs has died and whose restart is due."""
        return [box_id for box_id, retries in self._boxes.items() if self._is_due(box_id, retries)]

    async def settle(self) -> None:
        """Wait for all starts that `begin` began, for a bounded time."""
        await asyncio.gather(*self._starting.values())

    def close(self) -> None:
        """Remove the empty directory of the mounts."""
        with suppress(OSError):
            self._names.lxcfs.rmdir()

    # Steps.

    async def _start(self, program: Path, box_id: str) -> bool:
        if not self.serves(box_id):
            try:
                await self._launch(program, box_id)
            except (OSError, BoxdError) as error:
                _log.warning("lxcfs: %s; %s", error, CONSEQUENCE, extra={"box": box_id})
                with suppress(OSError, BoxdError):  # the next start or `end` retries
                    await self._clear(box_id)
                return False
        self._watch(box_id)
        return True

    def _watch(self, box_id: str) -> None:
        self._boxes.setdefault(box_id, Retries())

    def _is_due(self, box_id: str, retries: Retries) -> bool:
        cgroup = self._names.lxcfs_cgroup(box_id)
        is_alive = cgroups.has_processes(self._known_layout, cgroup)
        return not is_alive and retries.may_try(time.monotonic())

    async def _launch(self, program: Path, box_id: str) -> None:
        await self._clear(box_id)
        place, cgroup = self._place(box_id), self._names.lxcfs_cgroup(box_id)
        place.mkdir(mode=0o700, parents=True)
        parent = self._names.cgroup_parent
        directories = cgroups.make_bounded(self._known_layout, parent, cgroup, BOUNDS)
        command = (str(program), *_OPTIONS, str(self._pid_file(box_id)), str(place))
        shell = ("sh", "-ec", _LAUNCH, "sh", " ".join(map(str, directories)))
        await run_silent(*shell, *_RIGHTS, *command, alone=True)
        deadline = time.monotonic() + START_TIMEOUT
        while self._device(box_id) is None:
            if time.monotonic() > deadline:
                raise Unavailable(f"its files did not appear within {START_TIMEOUT:g} s")
            await asyncio.sleep(_POLL)

    async def _clear(self, box_id: str) -> None:
        """Kill the process, then unmount its files. Pending reads fail at once after the kill."""
        processes.kill(self._pids(box_id))
        place = self._place(box_id)
        # Reads the mount table, because a look at the directory would hang with its server.
        while self._device(box_id) is not None:
            mounts.detach(place)
        with suppress(FileNotFoundError):
            place.rmdir()
        self._pid_file(box_id).unlink(missing_ok=True)
        await cgroups.remove(self._known_layout, self._names.lxcfs_cgroup(box_id))

    def _pids(self, box_id: str) -> list[int]:
        return cgroups.pids_of(self._known_layout, self._names.lxcfs_cgroup(box_id))

    def _device(self, box_id: str) -> str | None:
        return mounts.device_at(_MOUNTINFO, str(self._place(box_id)))

    @property
    def _known_layout(self) -> cgroups.Layout:
        if self._layout is None:
            raise Unavailable("the backend is not set up")
        return self._layout

    def _place(self, box_id: str) -> Path:
        return self._names.lxcfs / box_id

    def _pid_file(self, box_id: str) -> Path:
        return self._names.lxcfs / f"{box_id}.pid"


class Retries:
    """Back-off between restarts of an lxcfs, because a box may kill its own repeatedly."""

    def __init__(self) -> None:
        self._count = 0
        self._last = -STABLE_AFTER

    def may_try(self, now: float) -> bool:
        """Return whether a restart is due at a monotonic time. If so, the next delay begins."""
        if now - self._last > STABLE_AFTER:
            self._count = 0
        if now - self._last < RETRY_DELAYS[min(self._count, len(RETRY_DELAYS) - 1)]:
            return False
        self._last, self._count = now, self._count + 1
        return True
