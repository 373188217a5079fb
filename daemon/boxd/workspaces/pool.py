"""Open Filesystems of volumes in this process, for HTTP and MCP: one per volume, made at need.

Critical sections: connecting and closing run under a lock per volume, so that two first requests
share one Filesystem; users are counted without an await between look and count, and one that is
used is never closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from boxd.errors import Conflict, QuotaExceeded, Unavailable
from boxd.tasks import BackgroundTasks
from wrkfs import errors as drive_errors
from wrkfs.config import MIB, Limits
from wrkfs.fs import Filesystem
from wrkfs.upkeep import background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.clock import Clock
    from wrkfs.config import VolumeConfig

KIND = "http"
"""How these sessions are registered in the volume."""
IDLE = 60.0
"""Seconds without use after which a Filesystem is closed."""
TICK = 5.0
"""Seconds between looks for idle ones."""
MAX_OPEN = 64
"""Most Filesystems at once: each holds connections to the database and a cache of blocks."""
LIMITS = Limits(blocks=24 * MIB, dirty=48 * MIB)
"""Memory of each: enough to stream at the store's speed.

*Measured*, by turns with a mount on a busy machine: uploads at 0.87 of its speed with 32 MiB dirty,
at 0.98 with 48; files of 256 MiB take 20 MiB of it where the store keeps up.
"""
SHARE = 4
"""All together may take this part (a quarter) of the host's memory: see `most_open`."""
MAX_OWNER = 8
"""Most of them for one owner, so that nobody keeps the others out."""

Place = tuple[str, str | None]
"""Owner and workspace."""

_log = logging.getLogger(__name__)


def most_open(memory: int) -> int:
    """How many Filesystems a host with so many bytes of memory can have open at once.

    As many as MAX_OWNER on any host: one owner can have these.
    """
    return max(MAX_OWNER, min(MAX_OPEN, memory // SHARE // (LIMITS.blocks + LIMITS.dirty)))


class Volumes(Protocol):
    """Finds and makes volumes; see boxd.workspaces.volumes."""

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """The volume of a workspace, None when there is none."""
        ...

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """The volume of a workspace, made when there is none."""
        ...


@dataclass(slots=True)
class Opened:
    """A Filesystem, how many use it, and when (monotonic seconds) the last one began or ended."""

    fs: Filesystem
    users: int
    used: float


class DrivePool:
    """See the module."""

    def __init__(
        self,
        volumes: Volumes,
        clock: Clock,
        *,
        idle: float = IDLE,
        max_open: int | None = None,
        pace: background.Pace = background.PACE,
    ) -> None:
        """`max_open`: None takes what the memory of this host allows."""
        self._volumes = volumes
        self._clock = clock
        self._idle = idle
        self._max_open = most_open(_host_memory()) if max_open is None else max_open
        self._pace = pace
        self._open: dict[Place, Opened] = {}
        self._connecting: list[Place] = []
        self._locks: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()
        self._timer = BackgroundTasks()

    @asynccontextmanager
    async def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AsyncIterator[Filesystem | None]:
        """The volume's Filesystem, kept open while the context lasts.

        A volume that is not there is made with `create`; without, it is None. Unavailable.
        """
        opened = await self._acquire((owner, workspace), create)
        if opened is None:
            yield None
            return
        try:
            yield opened.fs
        finally:
            opened.users -= 1
            opened.used = self._clock.monotonic()

    async def drop(self, owner: str, workspace: str | None) -> None:
        """Closes the Filesystem of a drive; no error if it is not open. Conflict while in use."""
        place = (owner, workspace)
        async with self._locks.setdefault(place, asyncio.Lock()):
            opened = self._open.get(place)
            if opened is not None and opened.users:
                raise Conflict("the drive is in use over HTTP; try again")
            if opened is not None:
                del self._open[place]
                await _end(opened)

    async def close_idle(self) -> None:
        """Closes what nobody has used for the time that is allowed."""
        before = self._clock.monotonic() - self._idle
        for place, opened in list(self._open.items()):
            if opened.used <= before:
                await self._close_unused(place, opened)

    async def close(self) -> None:
        """Closes all; what is dirty in them is committed first."""
        await self._timer.close()
        opened = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(one.fs.close() for one in opened))

    async def _acquire(self, place: Place, create: bool) -> Opened | None:
        async with self._locks.setdefault(place, asyncio.Lock()):
            opened = self._open.get(place)
            if opened is None:
                config = await self._volumes.find(*place)
                if config is None:
                    if not create:
                        return None
                    config = await self._volumes.ensure(*place)
                await self._make_room(place[0])
                opened = self._open[place] = Opened(await self._connect(place, config), 0, 0.0)
                if not self._timer:
                    self._timer.start(self._look(), name="idle drives")
            opened.users += 1
            opened.used = self._clock.monotonic()
            return opened

    async def _make_room(self, owner: str) -> None:
        """Closes those that were not used for longest. QuotaExceeded, Unavailable: all in use."""
        while self._count(owner) >= MAX_OWNER:
            if not await self._close_oldest(owner):
                raise QuotaExceeded(f"{MAX_OWNER} of your drives are in use over HTTP; try again")
        while self._count() >= self._max_open:
            if not await self._close_oldest():
                raise Unavailable(f"{self._max_open} drives are in use over HTTP; try again")

    def _count(self, owner: str | None = None) -> int:
        """Open ones and those that are being opened."""
        places = [*self._open, *self._connecting]
        return sum(owner is None or place[0] == owner for place in places)

    async def _close_oldest(self, owner: str | None = None) -> bool:
        """False when every one (of this owner) is in use."""
        unused = [
            (opened.used, place)
            for place, opened in self._open.items()
            if opened.users == 0 and (owner is None or place[0] == owner)
        ]
        if not unused:
            return False
        _, place = min(unused, key=lambda item: item[0])
        await _end(self._open.pop(place))
        return True

    async def _connect(self, place: Place, config: VolumeConfig) -> Filesystem:
        self._connecting.append(place)
        try:
            fs = await Filesystem.connect(config, kind=KIND, limits=LIMITS)
            background.start(fs, self._pace)
            return fs
        except drive_errors.StorageError as error:
            raise Unavailable(f"the drive does not answer: {error}") from error
        finally:
            self._connecting.remove(place)

    async def _close_unused(self, place: Place, opened: Opened) -> None:
        async with self._locks.setdefault(place, asyncio.Lock()):
            if opened.users == 0 and self._open.get(place) is opened:
                del self._open[place]
                await _end(opened)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            await self.close_idle()


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


async def _end(opened: Opened) -> None:
    """What was asked for was answered long ago, so there is nobody to tell of a failure."""
    try:
        await opened.fs.close()
    except (drive_errors.WrkfsError, OSError) as error:
        _log.warning("idle drive not closed cleanly: %s", error)
