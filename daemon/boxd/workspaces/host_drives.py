"""Drives that the host mounts: volume -> mount process on this host -> /wrk of the box.

Critical sections: none. The lifecycle calls `attach`, `detach` and `forget` of a box under the lock
of that box. `_users` and `_workspaces` change between awaits only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from boxd.errors import BoxdError, Conflict
from boxd.tasks import BackgroundTasks

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.backends.interface import Backend
    from boxd.model.box import Box
    from wrkfs.config import VolumeConfig

LINGER = 300.0
"""Seconds that a mount stays after its last box stopped, so that the next box starts quickly."""

DriveKey = tuple[str, str | None]
"""Owner and workspace (None: the default one)."""

_log = logging.getLogger(__name__)


class Volumes(Protocol):
    """Finds and creates volumes; `boxd.workspaces.volumes` implements it."""

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """Return the volume of a workspace; None if it does not exist."""
        ...

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Return the volume of a workspace; create it if needed."""
        ...


class Mounts(Protocol):
    """Mount processes of this host; `boxd.workspaces.mounts` implements it."""

    async def ensure(self, config: VolumeConfig) -> Path:
        """Start or adopt the volume's mount process; return the mount point."""
        ...

    async def release(self, volume_id: str) -> None:
        """End the volume's mount process."""
        ...

    async def present(self) -> list[str]:
        """List the volumes with a mount process on this host, including adopted ones."""
        ...

    async def health(self, volume_id: str) -> dict[str, object]:
        """Return the health of a volume's mount; {} without a mount on this host."""
        ...


class HostDrives:
    """Attaches mounts of the host to boxes: a `DriveAttacher` of `boxd.boxes.state.interface`."""

    def __init__(self, volumes: Volumes, mounts: Mounts, backend: Backend) -> None:
        self._volumes = volumes
        self._mounts = mounts
        self._backend = backend
        self._workspaces: dict[str, DriveKey] = {}
        self._users: dict[DriveKey, set[str]] = {}
        self._lingering: dict[DriveKey, asyncio.Task[None]] = {}
        self._timers = BackgroundTasks()

    def workspace_of(self, volume_id: str) -> DriveKey | None:
        """Return the workspace of a volume; None before its first use by this daemon."""
        return self._workspaces.get(volume_id)

    async def prepare(self, owner: str, workspace: str | None) -> Path:
        """Create and mount the volume, so that `attach` is quick; return the mount point."""
        return await self._mounted((owner, workspace))

    async def attach(self, box: Box) -> None:
        """Attach /wrk to the running box; replaces a stale mount.

        A failure does not change whether the box counts as a user of the mount.
        """
        key = (box.owner, box.workspace)
        try:
            path = await self._mounted(key)
            await self._backend.attach_drive(box.id, path)
        except BaseException:
            self._linger(key)
            raise
        self._users.setdefault(key, set()).add(box.id)

    def use(self, box: Box) -> None:
        """Count the resumed box, whose memory contains the mount, as a user of it again."""
        self._users.setdefault((box.owner, box.workspace), set()).add(box.id)

    async def detach(self, box: Box) -> None:
        """Detach /wrk. Raises Conflict with the processes that use it."""
        await self._backend.detach_drive(box.id)
        await self.forget(box)

    async def leave(self, box: Box) -> None:
        """Do nothing: the mount process on the host already has everything that the box wrote."""
        del box

    async def forget(self, box: Box) -> None:
        """Stop counting the box as a user. A mount without users ends after LINGER."""
        key = (box.owner, box.workspace)
        users = self._users.get(key, set())
        users.discard(box.id)
        if not users:
            self._users.pop(key, None)
        self._linger(key)

    async def release_unused(self, wanted: set[DriveKey]) -> None:
        """End the mounts of all workspaces except these. Call it before boxes start.

        Raises Unavailable if the volumes cannot be read; then all mounts stay.
        """
        volumes = [await self._volumes.find(*key) for key in wanted]
        used_ids = {config.volume for config in volumes if config is not None}
        for volume_id in await self._mounts.present():
            if volume_id not in used_ids:
                await self._end(volume_id)

    async def retire(self, owner: str, workspace: str | None, volume_id: str) -> None:
        """End the mount of a volume on this host. Raises Conflict while a box uses it."""
        key = (owner, workspace)
        if self._users.get(key):
            raise Conflict("a box still uses the drive; try again")
        timer = self._lingering.pop(key, None)
        if timer is not None:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        if volume_id in await self._mounts.present():
            await self._mounts.release(volume_id)
        self._workspaces.pop(volume_id, None)

    async def info(self, box: Box) -> dict[str, object]:
        """Return the facts that `box-guest workspace info` shows."""
        key = (box.owner, box.workspace)
        attached = box.id in self._users.get(key, ())
        health: dict[str, object] = {}
        for volume_id, owner_workspace in self._workspaces.items():
            if attached and owner_workspace == key:
                health = await self._mounts.health(volume_id)
                health.pop("statistics", None)  # for the operator
                break
        return {
            "mounted": attached,
            "path": "/wrk",
            "workspace": box.workspace or "(default)",
            "boxes": len(self._users.get(key, ())),
            **health,
        }

    async def close(self) -> None:
        """End the timers. Mounts stay as they are."""
        await self._timers.close()
        self._lingering.clear()

    async def _mounted(self, key: DriveKey) -> Path:
        timer = self._lingering.pop(key, None)
        if timer is not None:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        config = await self._volumes.ensure(*key)
        self._workspaces[config.volume] = key
        return await self._mounts.ensure(config)

    def _linger(self, key: DriveKey) -> None:
        """Start the timer that ends a mount without users."""
        if key not in self._users and key not in self._lingering:
            self._lingering[key] = self._timers.start(self._release(key), name="idle mount")

    async def _release(self, key: DriveKey) -> None:
        try:
            await asyncio.sleep(LINGER)
            for volume_id, owner_workspace in list(self._workspaces.items()):
                if owner_workspace == key and key not in self._users:
                    await self._end(volume_id)
        finally:
            if self._lingering.get(key) is asyncio.current_task():
                del self._lingering[key]

    async def _end(self, volume_id: str) -> None:
        try:
            await self._mounts.release(volume_id)
        except (BoxdError, OSError) as error:
            # A process that survives SIGKILL must not prevent the start of the service.
            _log.warning("idle mount not ended: %s", error, extra={"volume": volume_id})
