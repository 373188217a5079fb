"""The part of `PostgresMeta` that holds files open; see `interface.MetaStore` for every method."""

from __future__ import annotations

import asyncio
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from wrkfs.errors import (
    Doubtful,
    Fenced,
    NotFound,
    QuotaExceeded,
    StorageError,
    Unavailable,
    WrkfsError,
    by_errno,
)
from wrkfs.meta import rows, rules
from wrkfs.meta.handles import OpenFiles
from wrkfs.meta.postgres_upkeep import PostgresUpkeep
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import asyncpg

    from wrkfs.types import Caller, FileMap

PURGE_LIMIT = 2000
"""Entries removed in one call of `remove_tree`: about 50 ms of locks."""
_REOPENS = 10
_RELEASE_DELAY = 0.05
"""Seconds for which releases gather, so that they share one call."""
_RELEASE_WAIT = 10.0
"""Seconds for which who needs them done waits; a call follows, and no operation may last 90 s."""
_RELEASE_MANY = 256
"""So many are sent at once."""
_UNKNOWN = (Unavailable, Doubtful, StorageError)
"""Errors after which nobody knows whether the call was applied."""


class PostgresFiles(PostgresUpkeep):
    """Open files of one session.

    Releases gather for a moment and share one call. A file that is opened again meanwhile stays
    held; what needs to know them done, because it removes names or counts use, sends them first.
    """

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._lightly_held: Callable[[], Sequence[Ino]] = tuple
        self._timer: asyncio.TimerHandle | None = None
        self._releases: set[asyncio.Task[None]] = set()

    async def create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        exclusive: bool,
        durable: bool = False,
    ) -> tuple[FileMap, bool]:
        """See MetaStore."""
        rules.check_name(name)
        mode = stat.S_IFREG | stat.S_IMODE(mode)
        for _ in range(_REOPENS):
            files, ino = self._files, None
            new = await self._session.fresh_id()
            files.begin_create()
            try:
                with self._doubting(files):
                    owner = caller.uid, caller.gid
                    row = await self._growing(
                        "create", parent, name, new, mode, *owner, exclusive, durable
                    )
                ino = Ino(row[2])
                files.add(ino)
            finally:
                doubtful = files.end_create(ino)
            if not doubtful:
                files.confirm(ino)
                return rows.file_map(row), row[1]
            # A release of the same file was on its way and may have removed what create relied on.
            try:
                return await self._register(ino), row[1]
            except NotFound:
                continue
            except Fenced:
                raise Doubtful("fenced between creating and opening") from None
        raise StorageError("the file is replaced faster than it can be opened")

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        """See MetaStore."""
        new = await self._session.fresh_id()
        mode = stat.S_IFREG | stat.S_IMODE(mode)
        files = self._files
        files.add(new)
        try:
            with self._doubting(files):
                row = await self._growing("create_unlinked", new, mode, caller.uid, caller.gid)
        except BaseException:
            files.drop(new)
            raise
        files.confirm(new)
        return rows.file_map(row)

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        """See MetaStore."""
        self._session.check()
        files = self._files
        await files.settled(ino)
        files.add(ino)
        if not truncate and files.registered(ino):
            try:
                return await self.file_map(ino)
            except BaseException:
                self._let_go(files, ino)
                raise
        return await self._register(ino, truncate)

    async def _register(self, ino: Ino, truncate: bool = False) -> FileMap:
        """Makes the database hold an inode that has just been counted."""
        files = self._files
        try:
            await files.settled(ino)
            with self._doubting(files):
                row = await self._session.mutate("open", ino, truncate, minded=truncate)
        except BaseException:
            files.drop(ino)
            raise
        files.confirm(ino)
        return rows.file_map(row)

    async def sustain(self, inos: Sequence[Ino]) -> None:
        """See LeaseStore."""
        self._session.check()
        files, added = self._files, list[Ino]()
        try:
            for ino in inos:
                await files.settled(ino)
                files.add(ino)
                added.append(ino)
            unknown = [ino for ino in inos if not files.registered(ino)]
            if unknown:
                await self._session.mutate("sustain_all", unknown, minded=False)
        except BaseException:
            for ino in added:
                files.drop(ino)
            files.doubt()
            raise
        for ino in unknown:
            files.confirm(ino)

    async def release(self, ino: Ino) -> None:
        """See MetaStore."""
        files = self._files
        if files.registered(ino):
            self._let_go(files, ino)
        elif files.drop(ino):
            await self._send_release(files, [ino])

    def _let_go(self, files: OpenFiles, ino: Ino) -> None:
        """Takes back a handle of an inode whose row is there; the last one's release waits."""
        if not files.drop(ino):
            return
        if files.wait(ino) >= _RELEASE_MANY:
            self._release_now()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_RELEASE_DELAY, self._release_now)

    def _release_now(self) -> None:
        """Sends the releases that wait, in the background."""
        files = self._files
        inos = files.take_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not inos:
            return
        # At once: who opens one of them from here on waits for its end.
        pending = files.begin_release(inos)

        async def send() -> None:
            with suppress(WrkfsError), self._doubting(files):
                await self._session.mutate("release", inos, minded=False)

        def ended(task: asyncio.Task[None]) -> None:
            files.end_release(inos, pending)
            self._releases.discard(task)

        task = asyncio.create_task(send())
        self._releases.add(task)
        task.add_done_callback(ended)

    async def _release_waiting(self) -> bool:
        """Returns when no release waits or is on its way, or in an outage; whether one was."""
        self._release_now()
        if not self._releases:
            return False
        await asyncio.wait(self._releases, timeout=_RELEASE_WAIT)
        return True

    async def _send_release(self, files: OpenFiles, inos: list[Ino]) -> None:
        """Removes the rows of inodes that nobody holds here; `tidy` tries again if this fails."""
        pending = files.begin_release(inos)
        try:
            with self._doubting(files):
                await self._session.mutate("release", inos, minded=False)
        finally:
            files.end_release(inos, pending)

    async def _growing(self, name: str, *args: object) -> asyncpg.Record:
        """A change that a quota may refuse: not before what was let go of here has been freed."""
        try:
            return await self._session.mutate(name, *args)
        except QuotaExceeded:
            if not await self._release_waiting():
                raise
        return await self._session.mutate(name, *args)

    async def file_map(self, ino: Ino) -> FileMap:
        """See MetaStore."""
        return rows.file_map(await self._read("file_map", ino))

    async def _end_releases(self) -> None:
        """Nothing is sent any more: what waits ends with the session."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)

    async def tidy(self) -> None:
        """Lets go of what the database says is held here and nobody holds; the heart calls it.

        Such rows are left by opens and releases whose end is unknown, also by releases that a crash
        of the database has undone, and by removals of trees that ended early.
        """
        files = self._files
        if not files.doubted:
            return
        with self._doubting(files):
            found = await self._links.call("held", (self._session.id,))
            for number in found[0]["inos"] or ():
                # What is open lightly may have been told after a crash, see `survey`.
                light = number in self._lightly_held()
                if files is self._files and files.stray(Ino(number)) and not light:
                    await self._send_release(files, [Ino(number)])
            more = found[0]["doomed"]
            while more and files is self._files:
                more = (
                    await self._session.mutate("purge", self._session.id, PURGE_LIMIT, minded=False)
                )[1]

    @contextmanager
    def _doubting(self, files: OpenFiles) -> Iterator[None]:
        """In the body is a call that leaves a row behind when nobody learns its end."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, WrkfsError) or isinstance(error, _UNKNOWN):
                files.doubt()
            raise

    async def _read(self, name: str, *args: object) -> asyncpg.Record:
        row = (await self._links.call(name, args))[0]
        if row[0]:
            raise by_errno(row[0])
        return row
