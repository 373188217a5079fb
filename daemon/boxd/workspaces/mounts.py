"""Mount processes of this host: one per volume, started, adopted, restarted and ended.

A mount process lives in its own session and outlives the daemon; `adopt` finds it again by pid and
start time. All boxes of a volume on this host share its mount.

::

    DIRECTORY/<volume id>/mnt    where the volume is mounted
    DIRECTORY/<volume id>/pid    {"pid": ..., "start": ...}, written before the mount is ready
    DIRECTORY/<volume id>/log    what the process complains about
    DIRECTORY/<volume id>/status socket where it tells how it does
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
"""Seconds until a mount must stand: a start may wait 60 s for a database that is away."""
POLL = 0.005
"""Seconds between two looks whether it stands."""
END_STEPS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0))
"""SIGTERM makes it commit and unmount; SIGKILL ends one that hangs."""
MOUNTINFO = Path("/proc/self/mountinfo")
MNT_DETACH = 2
MAX_STACKED = 16

_log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Mount:
    """One volume's mount; `lock` is held while it is started or ended."""

    volume: str
    directory: Path
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    supervisor: Supervisor | None = None
    process: Process | None = None

    @property
    def mountpoint(self) -> Path:
        """Where the volume stands."""
        return self.directory / "mnt"

    @property
    def status(self) -> Path:
        """The socket where its process tells how it does."""
        return self.directory / "status"

    @property
    def present(self) -> Process | None:
        """The process that serves it now."""
        return self.process if self.supervisor is None else self.supervisor.process


class Mounts:
    """See the module.

    Critical sections: starting and ending a mount run under its lock; only the supervisor of a
    mount replaces its process, and it is released before the process is ended.
    """

    def __init__(
        self,
        directory: Path,
        *,
        on_restart: Callable[[str, Path], Awaitable[None]],
        cache: Path | None = None,
        cache_size: int = 0,
    ) -> None:
        """`on_restart(volume id, mountpoint)` is told after a crashed mount stands again.

        Each mount keeps at most `cache_size` bytes of blocks below the directory `cache`.
        """
        self._directory = directory
        self._cache: list[str] = []
        if cache is not None and cache_size:
            self._cache = ["--cache-dir", str(cache), "--cache-size", str(cache_size)]
        self._on_restart = on_restart
        self._mounts: dict[str, Mount] = {}

    async def ensure(self, config: VolumeConfig) -> Path:
        """The mountpoint of a volume, mounted. Unavailable when it does not come up."""
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
        """Ends a volume's mount: everything written is committed, then it is unmounted."""
        mount = self._mounts.get(volume_id)
        if mount is None:
            return
        async with mount.lock:
            await self._end(mount)

    async def health(self, volume_id: str) -> dict[str, object]:
        """How a volume's mount does; {} when there is none here."""
        mount = self._mounts.get(volume_id)
        return {} if mount is None or mount.present is None else await health.ask(mount.status)

    def present(self) -> list[str]:
        """The volumes that have a mount process here, adopted ones included."""
        return [
            mount.volume
            for mount in self._mounts.values()
            if mount.process is not None or mount.supervisor is not None
        ]

    async def adopt(self) -> None:
        """Finds the mounts that an earlier daemon left; clears away those whose process died."""
        if not self._directory.is_dir():
            return
        for entry in sorted(self._directory.iterdir()):
            # The mountpoint itself is not touched: a dead or hanging mount would answer.
            if not (entry / "pid").exists() and not _mounted(entry / "mnt"):
                continue
            mount = self._mount(entry.name)
            async with mount.lock:
                mount.process = _find_process(entry)
                if mount.process is None:
                    _clear(mount.mountpoint)
                    (entry / "pid").unlink(missing_ok=True)

    async def close(self, stop: bool) -> None:
        """Ends all mounts, or leaves them running for the next daemon to adopt."""
        for mount in list(self._mounts.values()):
            async with mount.lock:
                if stop:
                    await self._end(mount)
                else:
                    process = await _let_go(mount)
                    if process is not None:
                        process.close()
        self._mounts.clear()

    def _mount(self, volume: str) -> Mount:
        if "/" in volume or volume in ("", ".", ".."):
            raise ValueError("a volume id that is no file name")
        return self._mounts.setdefault(volume, Mount(volume, self._directory / volume))

    def _supervise(self, mount: Mount, config: VolumeConfig, process: Process) -> Supervisor:
        async def again() -> Process:
            started = await self._launch(mount, config)
            try:
                await self._on_restart(mount.volume, mount.mountpoint)
            except BoxdError as error:
                # The mount stands; who could not be told attaches it with its next use.
                _log.warning("restarted mount not attached: %s", error)
            return started

        supervisor = Supervisor(f"mount of volume {mount.volume}", again, _log.error)
        supervisor.watch(process)
        return supervisor

    async def _launch(self, mount: Mount, config: VolumeConfig) -> Process:
        """A process that has mounted the volume. Unavailable; nothing is left behind then."""
        directory = mount.directory
        try:
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
            _clear(mount.mountpoint)
            mount.mountpoint.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"no place to mount the drive: {error}") from None
        reader, writer = os.pipe()
        try:
            process = Process.spawn(
                [
                    sys.executable,
                    "-m",
                    "box_guest.mount",
                    "--credentials-fd",
                    str(reader),
                    *self._cache,
                    "--status",
                    str(mount.status),
                    str(mount.mountpoint),
                ],
                log=directory / "log",
                pass_fds=(reader,),
            )
            # A pipe takes 64 KiB without a reader; credentials are smaller.
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
        """Waits for a restart that is under way."""
        until = time.monotonic() + READY_TIMEOUT
        while mount.present is None or not _mounted(mount.mountpoint):
            if time.monotonic() > until:
                raise Unavailable(f"the drive is not mounted; see {mount.directory / 'log'}")
            await asyncio.sleep(POLL)

    async def _end(self, mount: Mount) -> None:
        process = await _let_go(mount)
        if process is not None:
            try:
                await process.end(END_STEPS)
            finally:
                process.close()
        _clear(mount.mountpoint)
        (mount.directory / "pid").unlink(missing_ok=True)


async def _let_go(mount: Mount) -> Process | None:
    """Stops watching; the process runs on."""
    process = mount.process
    if mount.supervisor is not None:
        process = await mount.supervisor.release()
    mount.supervisor = mount.process = None
    return process


async def _until_ready(mount: Mount, process: Process) -> None:
    until = time.monotonic() + READY_TIMEOUT
    while not _mounted(mount.mountpoint):
        if not process.alive:
            raise Unavailable(
                f"the drive's mount ended with {process.status}; see {mount.directory / 'log'}"
            )
        if time.monotonic() > until:
            raise Unavailable(f"the drive is not mounted; see {mount.directory / 'log'}")
        await asyncio.sleep(POLL)


def _find_process(directory: Path) -> Process | None:
    """The living process of a mount directory, if its mount stands too."""
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
    """Whether something is mounted on exactly this directory. Touches no file system."""
    wanted = str(path).replace(" ", "\\040").encode()
    return any(line.split(b" ", 5)[4] == wanted for line in MOUNTINFO.read_bytes().splitlines())


def _clear(path: Path) -> None:
    """Removes what is mounted on a directory, dead or alive. Unavailable when it stays."""
    for _ in range(MAX_STACKED):
        if not _mounted(path):
            return
        if _libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
            number = ctypes.get_errno()
            raise Unavailable(f"{path} cannot be unmounted: {os.strerror(number)}")
    raise Unavailable(f"{path}: more than {MAX_STACKED} mounts on it")
