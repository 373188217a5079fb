"""Brings drives into boxes: volume -> mount process on this host -> /wrk of the box.

Critical sections: none needed here. The lifecycle calls `attach`, `detach` and `forget` of one box
under that box's lock; `_users` and `_volumes` change between awaits only.
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
"""Seconds a mount stays after its last box stopped, so that the next box starts quickly."""

Workspace = tuple[str, str | None]
"""Owner and workspace."""

_log = logging.getLogger(__name__)


class Volumes(Protocol):
    """Finds and makes volumes; see boxd.workspaces.volumes."""

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """The volume of a workspace, None when there is none."""
        ...

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """The volume of a workspace, made when there is none."""
        ...


class Mounts(Protocol):
    """Mount processes of this host; see boxd.workspaces.mounts."""

    async def ensure(self, config: VolumeConfig) -> Path:
        """Where the volume is mounted on this host; starts or adopts its process."""
        ...

    async def release(self, volume_id: str) -> None:
        """Ends the volume's mount process."""
        ...

    def present(self) -> list[str]:
        """The volumes that have a mount process here, adopted ones included."""
        ...

    async def health(self, volume_id: str) -> dict[str, object]:
        """How a volume's mount does; {} when there is none here."""
        ...


class HostDrives:
    """See the module."""

    def __init__(self, volumes: Volumes, mounts: Mounts, backend: Backend) -> None:
        self._volumes = volumes
        self._mounts = mounts
        self._backend = backend
        self._workspaces: dict[str, Workspace] = {}
        self._users: dict[Workspace, set[str]] = {}
        self._lingering: dict[Workspace, asyncio.Task[None]] = {}
        self._timers = BackgroundTasks()

    def workspace_of(self, volume_id: str) -> Workspace | None:
        """Whose volume this is; None before its first use by this daemon."""
        return self._workspaces.get(volume_id)

    async def prepare(self, owner: str, workspace: str | None) -> Path:
        """Has the volume made and mounted, so that `attach` is quick; says where."""
        return await self._mounted((owner, workspace))

    async def attach(self, box: Box) -> None:
        """Makes /wrk appear in the running box; replaces a stale one.

        A box that it fails for uses the mount only if it did before.
        """
        place = (box.owner, box.workspace)
        try:
            path = await self._mounted(place)
            await self._backend.attach_drive(box.id, path)
        except BaseException:
            self._linger(place)
            raise
        self._users.setdefault(place, set()).add(box.id)

    def use(self, box: Box) -> None:
        """The box runs on with the mount in it: it is one of its users again."""
        self._users.setdefault((box.owner, box.workspace), set()).add(box.id)

    async def detach(self, box: Box) -> None:
        """Takes /wrk away; Conflict naming the holders when it is in use."""
        await self._backend.detach_drive(box.id)
        await self.forget(box)

    async def leave(self, box: Box) -> None:
        """The mount is the host's: what the box wrote is in its hands already."""
        del box

    async def forget(self, box: Box) -> None:
        """The box uses the mount no more; without users it ends after LINGER."""
        place = (box.owner, box.workspace)
        users = self._users.get(place, set())
        users.discard(box.id)
        if not users:
            self._users.pop(place, None)
        self._linger(place)

    async def release_unused(self, wanted: set[Workspace]) -> None:
        """Ends the mounts that no box of these workspaces uses. Call it before boxes start.

        Raises Unavailable when the volumes are not known; then all mounts stay.
        """
        volumes = [await self._volumes.find(*place) for place in wanted]
        kept = {config.volume for config in volumes if config is not None}
        for volume_id in self._mounts.present():
            if volume_id not in kept:
                await self._end(volume_id)

    async def retire(self, owner: str, workspace: str | None, volume_id: str) -> None:
        """Ends the mount of a volume on this host. Conflict while a box uses it."""
        place = (owner, workspace)
        if self._users.get(place):
            raise Conflict("a box still uses the drive; try again")
        timer = self._lingering.pop(place, None)
        if timer is not None:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        if volume_id in self._mounts.present():
            await self._mounts.release(volume_id)
        self._workspaces.pop(volume_id, None)

    async def info(self, box: Box) -> dict[str, object]:
        """What `box-guest workspace info` shows."""
        place = (box.owner, box.workspace)
        attached = box.id in self._users.get(place, ())
        told: dict[str, object] = {}
        for volume_id, owner_workspace in self._workspaces.items():
            if attached and owner_workspace == place:
                told = await self._mounts.health(volume_id)
                break
        return {
            "mounted": attached,
            "path": "/wrk",
            "workspace": box.workspace or "(default)",
            "boxes": len(self._users.get(place, ())),
            **told,
        }

    async def close(self) -> None:
        """Ends the timers; mounts stay as they are."""
        await self._timers.close()
        self._lingering.clear()

    async def _mounted(self, place: Workspace) -> Path:
        timer = self._lingering.pop(place, None)
        if timer is not None:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
        config = await self._volumes.ensure(*place)
        self._workspaces[config.volume] = place
        return await self._mounts.ensure(config)

    def _linger(self, place: Workspace) -> None:
        """Begins the time after which a mount without users ends."""
        if place not in self._users and place not in self._lingering:
            self._lingering[place] = self._timers.start(self._release(place), name="idle mount")

    async def _release(self, place: Workspace) -> None:
        try:
            await asyncio.sleep(LINGER)
            for volume_id, owner_workspace in list(self._workspaces.items()):
                if owner_workspace == place and place not in self._users:
                    await self._end(volume_id)
        finally:
            if self._lingering.get(place) is asyncio.current_task():
                del self._lingering[place]

    async def _end(self, volume_id: str) -> None:
        try:
            await self._mounts.release(volume_id)
        except (BoxdError, OSError) as error:
            # A process that SIGKILL does not end must not keep the service from starting.
            _log.warning("idle mount not ended: %s", error, extra={"volume": volume_id})
