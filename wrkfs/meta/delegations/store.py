"""A metadata store that decides changes by itself where it has the delegation of the directory."""

from __future__ import annotations

import logging
import stat
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import Doubtful, Fenced, NoData, QuotaExceeded, WrkfsError
from wrkfs.meta import rules
from wrkfs.meta.delegations.flusher import Flusher
from wrkfs.meta.delegations.grants import Grants
from wrkfs.meta.delegations.journal import Journal, Owner
from wrkfs.meta.delegations.local_changes import LocalChanges
from wrkfs.meta.delegations.ordered import OrderedStore
from wrkfs.meta.delegations.replay import replay_left
from wrkfs.meta.delegations.room import Room
from wrkfs.meta.delegations.upkeep import OrderedUpkeep
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.types import FileMap, Ino, RenameFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.types import Attr, Caller, Commit, Moved, SessionId, SetAttr, Spot, StatFs

    T = TypeVar("T")

log = logging.getLogger(__name__)

JOURNAL_RETRY = 5.0
"""Seconds between two attempts to create a journal."""


class DelegatedMeta:
    """Names and files under leases and write delegations.

    Implements `NodeStore`; the protocol documents each method.
    """

    def __init__(self, inner: DelegationStore, schema: str, journals: Path) -> None:
        """Journals of the volume `schema` are below `journals`."""
        self._inner = inner
        self._schema = schema
        self._journals = journals
        self._flusher = Flusher(inner)
        self._leased = leased = LeasedMeta(OrderedStore(inner, self._flusher))
        self.table = leased.table
        self.upkeep = OrderedUpkeep(inner.upkeep, self._flusher)
        self._room = Room(inner)
        self._flusher.room = self._room.left
        self._flusher.on_loss = self._lost
        self._local = LocalChanges(self.table, self._flusher, self._room, self._is_open)
        self._next_journal = 0.0
        """Time (monotonic clock) of the next attempt to create a journal, if there is none."""
        self._on_crash: Callable[[bool], None] = lambda _: None
        self._grants = Grants(inner, self.table, self._flusher)
        self.is_durable = self._grants.is_durable
        leased.leases.before_return = self._grants.give_back
        inner.watch_journals(lambda: replay_left(inner, schema, journals))
        # The leases serve these calls.
        self.lookup, self.readdir, self.parent = leased.lookup, leased.readdir, leased.parent
        self.getattr, self.file_map = leased.getattr, leased.file_map
        self.release, self.readlink, self.sync = leased.release, leased.readlink, leased.sync
        self.reserve_slices = leased.reserve_slices
        self.setxattr, self.removexattr = leased.setxattr, leased.removexattr
        self.give_up, self.drop_ranges = leased.give_up, leased.drop_ranges
        self.compact, self.copies = leased.compact, leased.copies

    # -- the session --

    @property
    def session(self) -> SessionId:
        """Number of the registered session."""
        return self._inner.session

    @property
    def flushing(self) -> tuple[int, int]:
        """The weight of the unsent changes, and the number of batches that were sent."""
        return self._flusher.unsent, self._flusher.sent

    @property
    def epoch(self) -> int:
        """Generation of the registration."""
        return self._inner.epoch

    async def start(self) -> None:
        """Start the leases, then the journal."""
        await self._leased.start()
        await self._start_journal()

    async def close(self) -> None:
        """Send all changes and end the session.

        Raises Unavailable if changes could not be sent. Then the journal keeps them, and the
        session stays in the database: the next mount on this host sends them.
        """
        failure: WrkfsError | None = None
        try:
            await self._flusher.flush()
        except WrkfsError as error:
            failure = error
        await self._flusher.stop()
        if not self._flusher.idle:
            self._inner.keep_session()
        await self._leased.close()
        self._flusher.close_journal()
        if failure is not None:
            raise failure

    async def rejoin(self) -> None:
        """Drop unsent changes and all leases, and register again."""
        self._flusher.lose()
        await self._flusher.stop()
        self._flusher.close_journal()
        await self._leased.rejoin()
        await self._start_journal()

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """Set the function for crashes and for lost changes."""
        self._on_crash = on_crash
        self._leased.watch(on_crash)

    async def _start_journal(self) -> None:
        self._flusher.start(None)
        error = self._create_journal()
        if error is not None:
            log.warning(
                "cannot write a journal in %s, so no change is delayed: %s", self._journals, error
            )
        await self._room.start()

    def _create_journal(self) -> str | None:
        """Create the journal if there is none; return why that is impossible now."""
        number = self._flusher.lacks_journal
        now = time.monotonic()
        if number is None or now < self._next_journal:
            return None
        inner = self._inner
        owner = Owner(self._schema, inner.session, inner.epoch, channel=inner.channel)
        try:
            self._flusher.use_journal(Journal(self._journals, owner, number))
        except OSError as error:
            self._next_journal = now + JOURNAL_RETRY
            return error.strerror
        return None

    def _lost(self, error: WrkfsError) -> None:
        """Report lost changes: the cache contains them, and open files may have lost bytes."""
        if not isinstance(error, Fenced | Doubtful):
            self._leased.leases.void()
        self._on_crash(True)

    # -- delegations --

    async def _may_decide(self, *directories: Ino) -> bool:
        """Return True if the session has the delegations of these directories, or gets them now."""
        if not self._flusher.can_record:
            self._create_journal()
        if not self._flusher.can_record:
            return False
        for directory in directories:
            if not await self._grants.take(directory):
                return False
        return True

    def _is_open(self, ino: Ino) -> bool:
        return ino in self._leased.leases.opens or self._inner.is_open(ino)

    async def _with_room(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a change in the database; what the session has reserved is free for it."""
        try:
            return await call()
        except QuotaExceeded:
            if not await self._room.give_back():
                raise
        return await call()

    async def _room_for(self, size: int, inodes: int) -> None:
        """Extend the reservation for a local change if it is short."""
        await self._room.refresh()
        if not self._room.covers(size, inodes):
            await self._flusher.flush()
            await self._room.extend(size, inodes)

    # -- names --

    async def _make(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        target: bytes = b"",
    ) -> Attr | None:
        """Create an inode and its name; return None if the database must do it."""
        rules.check_name(name)
        await self._flusher.make_room()
        if not await self._may_decide(parent):
            return None
        await self._room_for(0, 1)
        ino = await self._inner.fresh_id()
        return self._local.make(parent, name, ino, mode, caller, rdev=rdev, target=target)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        attr = await self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), caller)
        if attr is not None:
            return attr
        with self._grants.making() as recalled:
            attr = await self._with_room(lambda: self._leased.mkdir(parent, name, mode, caller))
        self._grants.adopt_created(attr, recalled)
        return attr

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        node, device = rules.node_mode(mode), rules.node_device(rules.node_mode(mode), rdev)
        attr = await self._make(parent, name, node, caller, rdev=device)
        if attr is not None:
            return attr
        return await self._with_room(lambda: self._leased.mknod(parent, name, mode, rdev, caller))

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        rules.check_target(target)
        attr = await self._make(parent, name, stat.S_IFLNK | 0o777, caller, target=target)
        if attr is not None:
            return attr
        return await self._with_room(lambda: self._leased.symlink(parent, name, target, caller))

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
        if exclusive or self.table.ino_of(parent, name) is None:
            attr = await self._make(parent, name, stat.S_IFREG | stat.S_IMODE(mode), caller)
            if attr is not None:
                self._leased.leases.opens.add(attr.ino)
                return FileMap(attr, ()), True
        return await self._with_room(
            lambda: self._leased.create(
                parent, name, mode, caller, exclusive=exclusive, durable=durable
            )
        )

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        return await self._leased.link(ino, parent, name)

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        rules.check_name(name)
        await self._flusher.make_room()
        if await self._may_decide(parent):
            at_ns = self._local.unlink(parent, name)
            if at_ns is not None:
                return at_ns
        return await self._leased.unlink(parent, name)

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        rules.check_name(name)
        await self._flusher.make_room()
        ino = self.table.ino_of(parent, name)
        if ino is not None and await self._may_decide(parent, ino):
            removed = self._local.rmdir(parent, name)
            if removed is not None:
                ino, at_ns = removed
                inos = self._leased.leases.remove(ino)
                await self.table.on_drop((), {ino, *inos})
                return at_ns
        return await self._leased.rmdir(parent, name)

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        await self._leased.remove_tree(parent, name, if_version=if_version)

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        rules.check_rename(flags)
        rules.check_name(name)
        rules.check_name(new_name)
        await self._flusher.make_room()
        if await self._may_decide(parent, new_parent):
            cookie = await self._inner.fresh_id()
            source, goal = (parent, name), (new_parent, new_name)
            moved = self._local.rename(source, goal, cookie, flags)
            if moved is not None:
                return moved
        return await self._leased.rename(parent, name, new_parent, new_name, flags)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        return await self._leased.publish(
            ino, parent, name, if_version=if_version, if_absent=if_absent
        )

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        return await self._leased.restore(ino, parent, name, link)

    async def statfs(self) -> StatFs:
        usage = await self._leased.statfs()
        self._room.note(usage)
        return usage

    # -- inodes --

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        rules.check_setattr(changes)
        if not changes.size:
            await self._flusher.make_room()
            if await self._may_decide(self.table.homes.get(ino, ino)):
                attr = self._local.setattr(ino, changes)
                if attr is not None:
                    return attr
        return await self._leased.setattr(ino, changes)

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        if self._flusher.can_record:
            atimes = {ino: at for ino, at in atimes.items() if not self._local.touch(ino, at)}
        if atimes:
            await self._leased.touch(atimes)

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        if self._flusher.is_new(ino):
            raise NoData(name)
        return await self._leased.getxattr(ino, name)

    async def listxattr(self, ino: Ino) -> list[bytes]:
        return [] if self._flusher.is_new(ino) else await self._leased.listxattr(ino)

    # -- files --

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        return await self._with_room(lambda: self._leased.create_unlinked(mode, caller))

    def open_now(self, ino: Ino) -> Attr | None:
        """Open a file as `LeasedMeta.open_now` does."""
        return self._leased.open_now(ino)

    def release_now(self, ino: Ino) -> bool:
        """Release an open file as `LeasedMeta.release_now` does."""
        return self._leased.release_now(ino)

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        if truncate and await self._may_decide(self.table.homes.get(ino, ino)):
            file_map = self._local.empty(ino)
            if file_map is not None:
                self._leased.leases.opens.add(ino)
                return file_map
        return await self._leased.open(ino, truncate=truncate)

    async def commit(self, commit: Commit) -> Attr:
        rules.check_commit(commit)
        await self._flusher.make_room()
        if await self._may_decide(self.table.homes.get(commit.ino, commit.ino)):
            await self._room_for(sum(extent.length for extent in commit.extents), 0)
            attr = self._local.commit(commit)
            if attr is not None:
                if commit.durable:
                    await self._flusher.flush()
                return attr
        # The database's log must have the bytes that the journal lacks.
        durable = replace(commit, durable=True)
        return await self._with_room(lambda: self._leased.commit(durable))

    # The database's log must have the bytes that the journal lacks. So each call below ends with a
    # sync, as a commit does.

    async def allocate(self, ino: Ino, start: int, length: int, *, clear: bool, grow: bool) -> Attr:
        attr = await self._with_room(
            lambda: self._leased.allocate(ino, start, length, clear=clear, grow=grow)
        )
        await self._leased.sync()
        return attr

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        attr = await self._leased.copy_range(source, start, target, to, length)
        await self._leased.sync()
        return attr
