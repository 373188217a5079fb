"""Recovery of a session: after the database fenced it, and after the database crashed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wrkfs.errors import Doubtful, Fenced, NotFound, Stale, StorageError, Unavailable, WrkfsError
from wrkfs.write_path import DISCARDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.attribute_cache import AttributeCache
    from wrkfs.handle import FileHandle, OpenFile
    from wrkfs.meta.interface.store import NodeStore
    from wrkfs.types import Ino

UNDONE = "the database crashed and lost changes that no fsync had covered; repeat them"
"""Error text for changes that the store answered and a crash undid."""
REJOIN_TRIES = 3
"""Registrations in one recovery: each epoch may be fenced before all files are open in it."""


class Recovery:
    """Registers a fenced session again and reopens its files.

    Critical section: `_rejoin_lock` is held from the end of an epoch until all files are open in
    the next.
    """

    def __init__(
        self, meta: NodeStore, files: dict[Ino, OpenFile], attributes: AttributeCache
    ) -> None:
        """`files` are the open files of the session; the caller adds and removes them."""
        self.on_fence: Callable[[], None] = lambda: None
        """Called when the database has fenced the session, before its bytes are discarded."""
        self._meta = meta
        self._files = files
        self._attributes = attributes
        self._rejoin_lock = asyncio.Lock()

    def after_crash(self, lost: bool) -> None:
        """Drop data from before a crash of the database: file versions may have stepped back.

        With `lost`, the crash undid changes of this session: every open handle reports it once.
        """
        self._attributes.clear()
        for file in self._files.values():
            file.layout = None
            if lost:
                file.report_loss(StorageError(UNDONE))

    async def rejoin(self, epoch: int) -> int:
        """Implement `wrkfs.write_path.Rejoin`. A file that cannot be reopened fails alone."""
        async with self._rejoin_lock:
            for _ in range(REJOIN_TRIES):
                if self._meta.epoch == epoch:
                    self.on_fence()
                    for file in self._files.values():
                        file.layout = None
                        file.writer.discard(Fenced(DISCARDED))
                    await self._meta.rejoin()
                try:
                    await self._reopen_all()
                except (Fenced, Doubtful):
                    epoch = self._meta.epoch  # the database fenced this epoch too
                else:
                    return self._meta.epoch
            raise Fenced(f"the session was fenced {REJOIN_TRIES} times while it reopened its files")

    async def _reopen_all(self) -> None:
        """Reopen every handle of an older epoch, including those opened during the recovery."""
        for file in list(self._files.values()):
            for handle in list(file.handles):
                if handle.epoch != self._meta.epoch:
                    await self._reopen(file, handle)

    async def _reopen(self, file: OpenFile, handle: FileHandle) -> None:
        """Open a handle's file in the current epoch.

        After Unavailable, Fenced or Doubtful, the caller tries again later.
        """
        try:
            await self._meta.open(file.ino)
        except (Unavailable, Fenced, Doubtful):
            raise
        except WrkfsError as error:
            absent = isinstance(error, NotFound | Stale)
            loss = Stale("the file was removed while the session was expired") if absent else error
            file.writer.fail(loss)
            file.report_loss(loss)
        else:
            if handle not in file.handles:
                await self._meta.release(file.ino)
                return
        handle.epoch = self._meta.epoch
