"""The mount processes of this host, one per volume: started once, adopted, restarted and ended.

A mount process lives in its own session and outlives the daemon. `adopt` finds it again by pid and
start time. All boxes of a volume on this host share its mount. `mount_process` starts one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from boxd.embedded.process import Supervisor
from boxd.errors import BoxdError, Unavailable
from boxd.workspaces import health, mount_process
from boxd.workspaces.mount_process import READY_TIMEOUT, MountPlace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from boxd.embedded.process import Process
    from boxd.workspaces.mount_process import MountOptions
    from wrkfs.config import VolumeConfig

POLL = 0.005
"""Seconds between two checks whether a restarted mount is there."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Mount:
    """The mount of a volume. `lock` is held while the mount starts or ends."""

    volume: str
    place: MountPlace
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    supervisor: Supervisor | None = None
    process: Process | None = None

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
        options: MountOptions,
        *,
        on_restart: Callable[[str, Path], Awaitable[None]],
    ) -> None:
        """`on_restart(volume id, mount point)` is called after the restart of a crashed mount."""
        self._directory = directory
        self._options = options
        self._on_restart = on_restart
        self._mounts: dict[str, Mount] = {}

    async def ensure(self, config: VolumeConfig) -> Path:
        """Mount a volume if needed; return its mount point. Raises Unavailable."""
        mount = self._mount(config.volume)
        async with mount.lock:
            if mount.supervisor is None:
                process = mount.process
                if process is None or not process.alive:
                    process = await self._start(mount, config)
                mount.process = None
                mount.supervisor = self._supervise(mount, config, process)
            await self._until_mounted(mount)
        return mount.place.mountpoint

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
        if mount is None or mount.present is None:
            return {}
        return await health.ask(mount.place.status)

    async def present(self) -> list[str]:
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
            place = MountPlace(entry)
            # A call on the mount point itself would fail or hang if the mount is dead or hangs.
            if not place.record.exists() and not place.mounted:
                continue
            mount = self._mount(entry.name)
            async with mount.lock:
                mount.process = mount_process.find(place)
                if mount.process is None:
                    place.clear()
                    place.record.unlink(missing_ok=True)

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
        return self._mounts.setdefault(volume, Mount(volume, MountPlace(self._directory / volume)))

    def _supervise(self, mount: Mount, config: VolumeConfig, process: Process) -> Supervisor:
        async def restart() -> Process:
            new_process = await self._start(mount, config)
            try:
                await self._on_restart(mount.volume, mount.place.mountpoint)
            except BoxdError as error:
                # The mount is ready. A box without the mount attaches it when the drive is next
                # used.
                _log.warning("restarted mount not attached: %s", error)
            return new_process

        supervisor = Supervisor(f"mount of volume {mount.volume}", restart, _log.error)
        supervisor.watch(process)
        return supervisor

    async def _start(self, mount: Mount, config: VolumeConfig) -> Process:
        return await mount_process.start(mount.place, config, self._options)

    async def _until_mounted(self, mount: Mount) -> None:
        """Wait for a restart in progress. Raises Unavailable."""
        deadline = time.monotonic() + READY_TIMEOUT
        while mount.present is None or not mount.place.mounted:
            if time.monotonic() > deadline:
                raise Unavailable(f"the drive is not mounted; see {mount.place.log}")
            await asyncio.sleep(POLL)

    async def _end(self, mount: Mount) -> None:
        process = await _release(mount)
        if process is not None:
            await mount_process.end(mount.place, process)
        mount.place.clear()
        mount.place.record.unlink(missing_ok=True)


async def _release(mount: Mount) -> Process | None:
    """Stop supervising; return the process, which keeps running."""
    process = mount.process
    if mount.supervisor is not None:
        process = await mount.supervisor.release()
    mount.supervisor = mount.process = None
    return process
