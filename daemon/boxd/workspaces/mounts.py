"""Starts, adopts, restarts and ends the mount processes of this host, one per volume.

A mount process lives in its own session and outlives the daemon. `adopt` finds it again by pid and
start time. All boxes of a volume on this host share its mount.

::

    DIRECTORY/<volume id>/mnt    mount point of the volume
    DIRECTORY/<volume id>/pid    {"pid": ..., "start": ...}, written before the mount is ready
    DIRECTORY/<volume id>/log    output of the process
    DIRECTORY/<volume id>/status socket for its health
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.embedded.files import write_private
from boxd.embedded.process import Process, Supervisor, start_ticks
from boxd.errors import BoxdError, Unavailable
from boxd.workspaces import health

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wrkfs.config import VolumeConfig

READY_TIMEOUT = 75.0
"""Seconds until a mount must be ready. A start may wait 60 s for a database that is down."""
POLL = 0.005
"""Seconds between two checks whether it is ready."""
END_STEPS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0))
"""On SIGTERM the process commits and unmounts. SIGKILL ends a process that hangs."""
MOUNTINFO = Path("/proc/self/mountinfo")
MNT_DETACH = 2
MAX_STACKED = 16

_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Mount:
    """The mount of a volume. `lock` is held while the mount starts or ends."""

    volume: str
    directory: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    supervisor: Supervisor | None = None
    process: Process | None = None

    @property
    def mountpoint(self) -> Path:
        """The mount point of the volume."""
        return self.directory / "mnt"

    @property
    def status(self) -> Path:
        """The socket for the health of its process."""
        return self.directory / "status"

    @property
    def present(self) -> Process | None:
        """The process that serves the mount now."""
        return self.process if self.supervisor is None else self.supervisor.process


class Mounts:
    """All mount processes of this host.

    Critical sections: a mount starts and ends under its lock. Only the supervisor of a mount
    replaces its process, and it is released before the process ends.
    """

    def __init__(
        self,
        directory: Path,
        *,
        on_restart: Callable[[str, Path], Awaitable[None]],
        cache: Path | None = None,
        cache_size: int = 0,
        journals: Path | None = None,
    ) -> None:
        """`on_restart(volume id, mount point)` is called after the restart of a crashed mount.

        Each mount caches at most `cache_size` bytes of blocks below the directory `cache`, and
        keeps a journal below `journals`.
        """
        self._directory = directory
        # CRIU restores only locks that the kernel keeps itself.
        self._options: list[str] = ["--local-locks"]
        if cache is not None and cache_size:
            self._options += ["--cache-dir", str(cache), "--cache-size", str(cache_size)]
        if journals is not None:
            self._options += ["--journal", str(journals)]
        self._on_restart = on_restart
        self._mounts: dict[str, Mount] = {}

    async def ensure(self, config: VolumeConfig) -> Path:
        """Mount a volume if needed; return its mount point. Raises Unavailable."""
        mount = self._mount(config.volume)
        async with mount.lock:
            if mount.supervisor is None:
                process = mount.process
                if process is None or not process.alive:
                    process = await self._launch(mount, config)
                mount.process = None
                mount.supervisor = self._supervise(mount, config, process)
            await self._until_mounted(mount)
        return mount.mountpoint

    async def release(self, volume_id: str) -> None:
        """Commit everything written to a volume's mount, and unmount it."""
        mount = self._mounts.get(volume_id)
        if mount is None:
            return
        async with mount.lock:
            await self._end(mount)

    async def health(self, volume_id: str) -> dict[str, object]:
        """Return the health of a volume's mount; {} without a mount on this host."""
        mount = self._mounts.get(volume_id)
        return {} if mount is None or mount.present is None else await health.ask(mount.status)

    def present(self) -> list[str]:
        """List the volumes with a mount process on this host, including adopted ones."""
        return [
            mount.volume
            for mount in self._mounts.values()
            if mount.process is not None or mount.supervisor is not None
        ]

    async def adopt(self) -> None:
        """Find the mounts of an earlier daemon, and unmount those whose process has died."""
        if not self._directory.is_dir():
            return
        for entry in sorted(self._directory.iterdir()):
            # A call on the mount point itself would fail or hang if the mount is dead or hangs.
            if not (entry / "pid").exists() and not _mounted(entry / "mnt"):
                continue
            mount = self._mount(entry.name)
            async with mount.lock:
                mount.process = _find_process(entry)
                if mount.process is None:
                    _clear(mount.mountpoint)
                    (entry / "pid").unlink(missing_ok=True)

    async def close(self, stop: bool) -> None:
        """End all mounts if `stop`; otherwise leave them running for the next daemon."""
        for mount in list(self._mounts.values()):
            async with mount.lock:
                if stop:
                    await self._end(mount)
                else:
                    process = await _release(mount)
                    if process is not None:
                        process.close()
        self._mounts.clear()

    def _mount(self, volume: str) -> Mount:
        if "/" in volume or volume in ("", ".", ".."):
            raise ValueError("a volume id must be a valid file name")
        return self._mounts.setdefault(volume, Mount(volume, self._directory / volume))

    def _supervise(self, mount: Mount, config: VolumeConfig, process: Process) -> Supervisor:
        async def restart() -> Process:
            new_process = await self._launch(mount, config)
            try:
                await self._on_restart(mount.volume, mount.mountpoint)
            except BoxdError as error:
                # The mount is ready. A box without the mount attaches it when the drive is next
                # used.
                _log.warning("restarted mount not attached: %s", error)
            return new_process

        supervisor = Supervisor(f"mount of volume {mount.volume}", restart, _log.error)
        supervisor.watch(process)
        return supervisor

    async def _launch(self, mount: Mount, config: VolumeConfig) -> Process:
        """Start a process and wait until it has mounted the volume.

        Raises Unavailable; then no process or mount remains.
        """
        directory = mount.directory
        try:
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
            _clear(mount.mountpoint)
            mount.mountpoint.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"cannot prepare the mount point of the drive: {error}") from None
        reader, writer = os.pipe()
        try:
            process = Process.spawn(
                [
                    sys.executable,
                    "-m",
                    "box_guest.mount",
                    "--credentials-fd",
                    str(reader),
                    *self._options,
                    "--status",
                    str(mount.status),
                    str(mount.mountpoint),
                ],
                log=directory / "log",
                pass_fds=(reader,),
            )
            # A pipe buffers 64 KiB without a reader; credentials are smaller.
            os.write(writer, config.to_json().encode())
        finally:
            os.close(reader)
            os.close(writer)
        try:
            identity = {"pid": process.pid, "start": start_ticks(process.pid)}
            write_private(directory / "pid", json.dumps(identity).encode())
            await _until_ready(mount, process)
        except BaseException:
            await process.end(END_STEPS[1:])
            process.close()
            _clear(mount.mountpoint)
            raise
        return process

    async def _until_mounted(self, mount: Mount) -> None:
        """Wait for a restart in progress. Raises Unavailable."""
        deadline = time.monotonic() + READY_TIMEOUT
        while mount.present is None or not _mounted(mount.mountpoint):
            if time.monotonic() > deadline:
                raise Unavailable(f"the drive is not mounted; see {mount.directory / 'log'}")
            await asyncio.sleep(POLL)

    async def _end(self, mount: Mount) -> None:
        process = await _release(mount)
        if process is not None:
            try:
                await process.end(END_STEPS)
            finally:
                process.close()
        _clear(mount.mountpoint)
        (mount.directory / "pid").unlink(missing_ok=True)


async def _release(mount: Mount) -> Process | None:
    """Stop supervising; return the process, which keeps running."""
    process = mount.process
    if mount.supervisor is not None:
        process = await mount.supervisor.release()
    mount.supervisor = mount.process = None
    return process


async def _until_ready(mount: Mount, process: Process) -> None:
    deadline = time.monotonic() + READY_TIMEOUT
    while not _mounted(mount.mountpoint):
        if not process.alive:
            raise Unavailable(
                f"the drive's mount ended with {process.status}; see {mount.directory / 'log'}"
            )
        if time.monotonic() > deadline:
            raise Unavailable(f"the drive is not mounted; see {mount.directory / 'log'}")
        await asyncio.sleep(POLL)


def _find_process(directory: Path) -> Process | None:
    """Return the process of a mount directory, if both process and mount exist."""
    try:
        identity = json.loads((directory / "pid").read_text(encoding="utf-8"))
        pid, start = int(identity["pid"]), int(identity["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if start_ticks(pid) != start or not _mounted(directory / "mnt"):
        return None
    try:
        return Process(pid)
    except ProcessLookupError:
        return None


def _mounted(path: Path) -> bool:
    """Return whether exactly this directory is a mount point. Makes no call on it."""
    escaped = str(path).replace(" ", "\\040").encode()
    return any(line.split(b" ", 5)[4] == escaped for line in MOUNTINFO.read_bytes().splitlines())


def _clear(path: Path) -> None:
    """Unmount everything on a directory, dead or alive. Raises Unavailable if that fails."""
    for _ in range(MAX_STACKED):
        if not _mounted(path):
            return
        if _libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
            number = ctypes.get_errno()
            raise Unavailable(f"{path} cannot be unmounted: {os.strerror(number)}")
    raise Unavailable(f"{path}: more than {MAX_STACKED} mounts on it")
