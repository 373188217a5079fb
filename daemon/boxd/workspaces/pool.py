"""Pool of open Filesystems in this process, for HTTP and MCP: one per volume, opened on demand.

Critical sections: a lock per workspace serialises opening and closing, so that two first requests
share one Filesystem. There is no await between the lookup of a Filesystem and the increment of its
users, so a Filesystem in use is never closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from boxd.errors import Conflict, QuotaExceeded, Unavailable
from boxd.observation import UNOBSERVED, Work
from boxd.tasks import BackgroundTasks
from wrkfs import errors as drive_errors
from wrkfs.config import MIB, Limits
from wrkfs.fs import Filesystem
from wrkfs.upkeep import background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from boxd.clock import Clock
    from boxd.observation import Observer
    from wrkfs.config import VolumeConfig

KIND = "http"
"""The kind of these sessions in the volume's list of sessions."""
IDLE = 60.0
"""Seconds without use after which a Filesystem is closed."""
TICK = 5.0
"""Seconds between two searches for idle Filesystems."""
MAX_OPEN = 64
"""Maximum number of open Filesystems. Each holds database connections and a cache of blocks."""
LIMITS = Limits(blocks=24 * MIB, dirty=48 * MIB)
"""Memory of each Filesystem: enough to stream at the speed of the store.

*Measured* in alternation with a mount, on a busy machine: uploads reach 0.87 of the mount's speed
with 32 MiB of dirty data, and 0.98 with 48 MiB. If the store keeps up, files of 256 MiB use 20 MiB.
"""
SHARE = 4
"""All Filesystems together may use 1/SHARE of the host's memory; see `most_open`."""
MAX_OWNER = 8
"""Maximum number of open Filesystems of one owner, so that no owner locks out the others."""

DriveKey = tuple[str, str | None]
"""Owner and workspace (None: the default one)."""

_log = logging.getLogger(__name__)


def most_open(memory: int) -> int:
    """Return how many Filesystems may be open on a host with `memory` bytes.

    The result is at least MAX_OWNER, so that one owner can always open that many.
    """
    return max(MAX_OWNER, min(MAX_OPEN, memory // SHARE // (LIMITS.blocks + LIMITS.dirty)))


class Volumes(Protocol):
    """Finds and creates volumes; `boxd.workspaces.volumes` implements it."""

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """Return the volume of a workspace; None if it does not exist."""
        ...

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Return the volume of a workspace; create it if needed."""
        ...


class Journals(Protocol):
    """Journals of this host's mounts; `boxd.workspaces.journals` implements it."""

    def open(self, config: VolumeConfig) -> AbstractAsyncContextManager[Path]:
        """Return a context with the directory of a volume's journals, readable and writable."""
        ...


@dataclass(slots=True)
class PoolEntry:
    """A Filesystem, its number of users, and the monotonic time of its last use, in seconds."""

    fs: Filesystem
    users: int
    last_use: float


class DrivePool:
    """The open Filesystems of this process."""

    def __init__(
        self,
        volumes: Volumes,
        clock: Clock,
        *,
        idle: float = IDLE,
        max_open: int | None = None,
        pace: background.Pace = background.PACE,
        journals: Journals | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        """`max_open` None: as many as the memory of this host allows.

        `journals` are those of this host's mounts. The pool replays that of a dead mount if a
        request waits for it.
        """
        self._journals = journals
        self._watch_call = partial(observer.work, Work.DRIVE_CALL)
        self._volumes = volumes
        self._clock = clock
        self._idle = idle
        self._max_open = most_open(_host_memory()) if max_open is None else max_open
        self._pace = pace
        self._open: dict[DriveKey, PoolEntry] = {}
        self._connecting: list[DriveKey] = []
        self._locks: WeakValueDictionary[DriveKey, asyncio.Lock] = WeakValueDictionary()
        self._timer = BackgroundTasks()

    @asynccontextmanager
    async def use(
        self, owner: str, workspace: str | None, *, create: bool
    ) -> AsyncIterator[Filesystem | None]:
        """Yield the volume's Filesystem, which stays open while the context lasts.

        If the volume does not exist, the method creates it with `create`, and yields None
        otherwise. Raises Unavailable.
        """
        entry = await self._acquire((owner, workspace), create)
        if entry is None:
            yield None
            return
        try:
            yield entry.fs
        finally:
            entry.users -= 1
            entry.last_use = self._clock.monotonic()

    @property
    def numbers(self) -> tuple[int, int]:
        """Number of open Filesystems that are in use, and of those that are idle."""
        used = sum(entry.users > 0 for entry in self._open.values())
        return used, len(self._open) - used

    async def drop(self, owner: str, workspace: str | None) -> None:
        """Close the Filesystem of a drive, if it is open. Raises Conflict while it is in use."""
        key = (owner, workspace)
        async with self._locks.setdefault(key, asyncio.Lock()):
            entry = self._open.get(key)
            if entry is not None and entry.users:
                raise Conflict("the drive is in use over HTTP; try again")
            if entry is not None:
                del self._open[key]
                await _close(entry)

    async def close_idle(self) -> None:
        """Close the Filesystems that were idle for longer than the limit."""
        limit = self._clock.monotonic() - self._idle
        for key, entry in list(self._open.items()):
            if entry.last_use <= limit:
                await self._close_unused(key, entry)

    async def close(self) -> None:
        """Commit the dirty data of all Filesystems, and close them."""
        await self._timer.close()
        entries = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*(entry.fs.close() for entry in entries))

    async def _acquire(self, key: DriveKey, create: bool) -> PoolEntry | None:
        async with self._locks.setdefault(key, asyncio.Lock()):
            entry = self._open.get(key)
            if entry is None:
                config = await self._volumes.find(*key)
                if config is None:
                    if not create:
                        return None
                    config = await self._volumes.ensure(*key)
                await self._make_room(key[0])
                entry = self._open[key] = PoolEntry(await self._connect(key, config), 0, 0.0)
                if not self._timer:
                    self._timer.start(self._close_idle_periodically(), name="idle drives")
            entry.users += 1
            entry.last_use = self._clock.monotonic()
            return entry

    async def _make_room(self, owner: str) -> None:
        """Close the longest idle Filesystems until another one may be opened.

        Raises QuotaExceeded or Unavailable if all are in use.
        """
        while self._count(owner) >= MAX_OWNER:
            if not await self._close_oldest(owner):
                raise QuotaExceeded(f"{MAX_OWNER} of your drives are in use over HTTP; try again")
        while self._count() >= self._max_open:
            if not await self._close_oldest():
                raise Unavailable(f"{self._max_open} drives are in use over HTTP; try again")

    def _count(self, owner: str | None = None) -> int:
        """Return the number of Filesystems (of this owner) that are open or being opened."""
        keys = [*self._open, *self._connecting]
        return sum(owner is None or key[0] == owner for key in keys)

    async def _close_oldest(self, owner: str | None = None) -> bool:
        """Close the longest idle one; return False if all (of this owner) are in use."""
        unused = [
            (entry.last_use, key)
            for key, entry in self._open.items()
            if entry.users == 0 and (owner is None or key[0] == owner)
        ]
        if not unused:
            return False
        _, key = min(unused, key=lambda item: item[0])
        await _close(self._open.pop(key))
        return True

    async def _connect(self, key: DriveKey, config: VolumeConfig) -> Filesystem:
        self._connecting.append(key)
        try:
            journals = self._journals
            opening = None if journals is None else partial(journals.open, config)
            fs = await Filesystem.connect(
                config,
                kind=KIND,
                limits=LIMITS,
                journals_left=opening,
                watch_call=self._watch_call,
            )
            background.start(fs, self._pace)
            return fs
        except drive_errors.StorageError as error:
            raise Unavailable(f"the drive does not answer: {error}") from error
        finally:
            self._connecting.remove(key)

    async def _close_unused(self, key: DriveKey, entry: PoolEntry) -> None:
        async with self._locks.setdefault(key, asyncio.Lock()):
            if entry.users == 0 and self._open.get(key) is entry:
                del self._open[key]
                await _close(entry)

    async def _close_idle_periodically(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            await self.close_idle()


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


async def _close(entry: PoolEntry) -> None:
    """Close a Filesystem. The pool only logs a failure, because all requests have their answer."""
    try:
        await entry.fs.close()
    except (drive_errors.WrkfsError, OSError) as error:
        _log.warning("idle drive was not closed cleanly: %s", error)
