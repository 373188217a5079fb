"""Open files of a session in PostgreSQL: `create`, `open`, `release` and their book-keeping."""

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
from wrkfs.meta import rules
from wrkfs.meta.postgres import rows
from wrkfs.meta.postgres.handles import OpenFiles
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import asyncpg

    from wrkfs.meta.postgres.delegations import Delegations
    from wrkfs.meta.postgres.links import Links
    from wrkfs.meta.postgres.sessions import MountSession
    from wrkfs.types import Caller, FileMap, SliceId, Stretch

PURGE_LIMIT = 2000
"""Number of entries that one call of `remove_tree` frees: about 50 ms of locks."""
_REOPENS = 10
"""Attempts to open a file that other sessions replace meanwhile."""
_RELEASE_DELAY = 0.05
"""Seconds for which releases are collected, so that they share one call."""
_RELEASE_WAIT = 10.0
"""Seconds for which an operation waits for releases. A call follows, and no operation may take more
than 90 s."""
_RELEASE_MANY = 256
"""Number of waiting releases that are sent without further delay."""
_UNKNOWN = (Unavailable, Doubtful, StorageError)
"""Errors after which it is unknown whether the call took effect."""


class PostgresFiles:
    """Open files of one session.

    Releases are collected for a moment and share one call. A file that is opened again meanwhile
    keeps its row. Operations that remove names or report usage send the releases first.

    Implements `LeaseStore` for open files; the protocol documents each method.
    """

    _links: Links
    _session: MountSession
    _delegations: Delegations

    def __init__(self) -> None:
        self._files = OpenFiles()
        self._unrecorded: Callable[[], Sequence[Ino]] = tuple
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
            # A release of the same file was on its way and may have deleted the row of this create.
            try:
                return await self._register(ino), row[1]
            except NotFound:
                continue
            except Fenced:
                raise Doubtful(
                    "the session was fenced after it created the file and before it opened it"
                ) from None
        raise StorageError(
            f"the file was replaced {_REOPENS} times while it was being opened; try again"
        )

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
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
        """Insert the row of an inode whose handle has just been counted."""
        files = self._files
        try:
            await files.settled(ino)
            with self._doubting(files):
                row = await self._session.mutate("open", ino, truncate, is_change=truncate)
        except BaseException:
            files.drop(ino)
            raise
        files.confirm(ino)
        return rows.file_map(row)

    async def sustain(self, inos: Sequence[Ino]) -> None:
        self._session.check()
        files, added = self._files, list[Ino]()
        try:
            for ino in inos:
                await files.settled(ino)
                files.add(ino)
                added.append(ino)
            unknown = [ino for ino in inos if not files.registered(ino)]
            if unknown:
                await self._session.mutate("sustain_all", unknown, is_change=False)
        except BaseException:
            for ino in added:
                files.drop(ino)
            files.doubt()
            raise
        for ino in unknown:
            files.confirm(ino)

    async def release(self, ino: Ino) -> None:
        files = self._files
        if files.registered(ino):
            self._let_go(files, ino)
        elif files.drop(ino):
            await self._send_release(files, [ino])

    def _let_go(self, files: OpenFiles, ino: Ino) -> None:
        """Remove a handle of an inode that has a row; the release of the last one waits."""
        if not files.drop(ino):
            return
        if files.wait(ino) >= _RELEASE_MANY:
            self._release_now()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_RELEASE_DELAY, self._release_now)

    def _release_now(self) -> None:
        """Send the releases that wait, in the background."""
        files = self._files
        inos = files.take_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not inos:
            return
        # Registered at once, so that later opens of these inodes wait for the end of the release.
        pending = files.begin_release(inos)

        async def send() -> None:
            with suppress(WrkfsError), self._doubting(files):
                await self._session.mutate("release", inos, is_change=False)

        def ended(task: asyncio.Task[None]) -> None:
            files.end_release(inos, pending)
            self._releases.discard(task)

        task = asyncio.create_task(send())
        self._releases.add(task)
        task.add_done_callback(ended)

    async def _release_waiting(self) -> bool:
        """Send waiting releases and wait for them, at most `_RELEASE_WAIT` seconds in an outage.

        Returns True if there were any.
        """
        self._release_now()
        if not self._releases:
            return False
        await asyncio.wait(self._releases, timeout=_RELEASE_WAIT)
        return True

    async def _send_release(self, files: OpenFiles, inos: list[Ino]) -> None:
        """Delete the rows of inodes without handles; `tidy` tries again if this fails."""
        pending = files.begin_release(inos)
        try:
            with self._doubting(files):
                await self._session.mutate("release", inos, is_change=False)
        finally:
            files.end_release(inos, pending)

    async def _growing(self, name: str, *args: object) -> asyncpg.Record:
        """Make a change that needs quota; on QuotaExceeded, send waiting releases and try again.

        A release may free an unlinked file.
        """
        try:
            return await self._session.mutate(name, *args)
        except QuotaExceeded:
            if not await self._release_waiting():
                raise
        return await self._session.mutate(name, *args)

    async def file_map(self, ino: Ino) -> FileMap:
        return rows.file_map(await self._read("file_map", ino))

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        await self._session.give_up(list(slices), list(slices.values()))

    async def drop_ranges(self) -> None:
        await self._links.call("drop_ranges", (self._session.id,))

    async def compact(self, stretch: Stretch) -> bool:
        extent = stretch.extent
        row = await self._session.mutate(
            "compact",
            stretch.ino,
            extent.pos,
            extent.length,
            extent.slice_id,
            b"" if extent.inline is not None else extent.checksums,
            extent.inline,
            [ref.slice_id for ref in stretch.refs],
            [ref.pos for ref in stretch.refs],
            [ref.off for ref in stretch.refs],
            [ref.length for ref in stretch.refs],
            list(stretch.hidden),
        )
        replaced: bool = row[1]
        return replaced

    async def _end_releases(self) -> None:
        """Stop sending releases; the end of the session releases the rest."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._releases:
            task.cancel()
        await asyncio.gather(*self._releases, return_exceptions=True)

    async def tidy(self) -> None:
        """Delete rows of this session that belong to no handle; the heartbeat calls this.

        Three kinds of calls leave such rows: opens and releases whose outcome is unknown, releases
        that a crash of the database has undone, and removals of trees that ended early.
        """
        files = self._files
        if not files.doubted:
            return
        with self._doubting(files):
            (row,) = await self._links.call("held", (self._session.id,))
            for number in row["inos"] or ():
                # `survey` may have recorded a light handle after a crash.
                light = number in self._unrecorded()
                if files is self._files and files.stray(Ino(number)) and not light:
                    await self._send_release(files, [Ino(number)])
            more = row["doomed"]
            while more and files is self._files:
                more = (
                    await self._session.mutate(
                        "purge", self._session.id, PURGE_LIMIT, is_change=False
                    )
                )[1]

    @contextmanager
    def _doubting(self, files: OpenFiles) -> Iterator[None]:
        """Record a doubt if the outcome of the call in the body is unknown: it may leave a row."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, WrkfsError) or isinstance(error, _UNKNOWN):
                files.doubt()
            raise

    async def _read(self, name: str, *args: object) -> asyncpg.Record:
        row = (await self._delegations.read(name, *args))[0]
        if row[0]:
            raise by_errno(row[0])
        return row
