"""The metadata store in PostgreSQL: each operation is one call of one SQL function, one round trip.

`wrkfs.meta.interface` and `functions/*.sql` define the semantics; this file converts values. Calls
survive lost connections (`links`), take effect once (`sessions`), and end within a minute.

After `Fenced`, every mutating call fails until `rejoin`. The caller then does these steps:

- It discards the bytes that were written and not committed. Each handle of such a file reports the
  loss at its next fsync or close.
- It calls `rejoin`, opens its files again, and continues with a new session.

A call that raised `Fenced` changed nothing, so the caller may repeat it. The outcome of a call that
raised `Doubtful` is unknown.
"""

from __future__ import annotations

import errno
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from wrkfs.errors import (
    Doubtful,
    Fenced,
    InvalidArgument,
    by_errno,
)
from wrkfs.meta import rules
from wrkfs.meta.postgres import rows, trees
from wrkfs.meta.postgres.copies import PostgresCopies
from wrkfs.meta.postgres.delegations import Delegations
from wrkfs.meta.postgres.files import PURGE_LIMIT, PostgresFiles
from wrkfs.meta.postgres.handles import OpenFiles
from wrkfs.meta.postgres.links import DEADLINE, Links, WatchCall, unwatched
from wrkfs.meta.postgres.listener import Listener
from wrkfs.meta.postgres.locks import PostgresLocks
from wrkfs.meta.postgres.sessions import CLOSE_DEADLINE, MountSession
from wrkfs.meta.postgres.upkeep import PostgresUpkeep
from wrkfs.types import Ino, Moved, RenameFlags, SessionId, SliceId, StatFs, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import timedelta

    from wrkfs.config import VolumeConfig
    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest
    from wrkfs.types import Attr, Caller, Commit, Dentry, SetAttr, Spot

CONNECTIONS = 4
"""Maximum number of concurrent calls to the database."""
_SLICES = 16
"""Minimum number of slice ids in one reservation, because compaction takes one at a time."""
_SLICES_MAX = 1 << 20


class PostgresMeta(PostgresFiles):
    """One session on the schema of a volume.

    Implements `MetaStore` and `DelegationStore`; the protocols document each method.

    Critical sections: none beyond those of `Links`, `MountSession` and `OpenFiles`; `_slices`
    changes without an await in between.
    """

    def __init__(
        self,
        config: VolumeConfig,
        *,
        kind: str = "mount",
        connections: int = CONNECTIONS,
        deadline: float = DEADLINE,
        leases: bool = False,
        delegates: bool = False,
        watch_call: WatchCall = unwatched,
    ) -> None:
        """Outages of up to `deadline` seconds only cost latency.

        `leases` permits leases, and `delegates` also write delegations. With delegations every
        change is durable when it is answered, or in the journal. `watch_call` sees every call.
        """
        super().__init__()
        self._links = Links(config, connections, deadline, durable=delegates)
        self._links.watch_call = watch_call
        self.listener = Listener(self._links) if leases else None
        self._session = MountSession(
            self._links,
            kind,
            lambda: [*self._files.held, *self._unrecorded()],
            self._crashed,
            self.listener.channel if self.listener else None,
            delegates=delegates,
        )
        self._delegations = Delegations(self._links, self._session)
        self.delegate, self.apply = self._delegations.delegate, self._delegations.apply
        self.claim, self.apply_for = self._delegations.claim, self._delegations.apply_for
        self.granted = self._delegations.granted
        self.reserve_room, self.fresh_id = self._delegations.reserve_room, self._session.fresh_id
        self._session.tidy = self.tidy
        self.upkeep = PostgresUpkeep(self._links, self._session)
        self.copies = PostgresCopies(
            self._links, self._session, self._release_waiting, self._purge_doomed
        )
        self.locks = PostgresLocks(self._links, self._session, self.listener)
        self._on_crash: Callable[[bool], None] | None = None
        self._replay: Callable[[], Awaitable[set[SessionId]]] | None = None
        self._slices = range(0)

    @property
    def session(self) -> SessionId:
        """The registered session."""
        return self._session.id

    @property
    def epoch(self) -> int:
        """Generation of the registration; each `rejoin` increases it."""
        return self._session.epoch

    @property
    def fenced(self) -> bool:
        """True after the database has rejected this session, until `rejoin`."""
        return self._session.fenced

    async def start(self) -> None:
        """Connect and register. Raises Unavailable after a minute without the database."""
        await self._session.register()
        if self.listener is not None:
            processes = await self._session.processes()
            busy = set() if self._replay is None else await self._replay()
            await self._session.fence_dead(processes, busy)
            await self.listener.start()

    async def rejoin(self) -> None:
        """Register a new session with a higher epoch and no open files."""
        self._files = OpenFiles()
        self._slices = range(0)
        await self._session.register()

    async def close(self, *, deadline: float = CLOSE_DEADLINE) -> None:
        """End the session within `deadline` seconds, even during an outage. Idempotent."""
        try:
            await self._end_releases()
            await self._session.end(deadline)
        finally:
            if self.listener is not None:
                await self.listener.close()
            await self._links.close()

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        self._on_crash = on_crash

    def _crashed(self, lost: bool) -> None:
        self._files.doubt()  # the crash may have undone releases
        if self._on_crash is not None:
            self._on_crash(lost)

    async def fence(self, session: SessionId, *, force: bool = False) -> bool:
        """Fence another session and reclaim its files. Return False if it has not expired.

        With `force`, the call does not wait for the expiry. Use it only if the process of that
        session is known to be dead.
        """
        is_fenced: bool = (await self._links.call("fence", (session, force)))[0][0]
        if is_fenced and session != self._session.id:
            await self._session.reclaim(session)
        return is_fenced

    async def reap(self, silence: timedelta, patience: timedelta) -> None:
        """Fence sessions without heartbeats and reclaim their files.

        The heartbeat does this regularly. `silence` is the time without heartbeats after which a
        session becomes suspect, `patience` the time it then has for a heartbeat.
        """
        await self._session.reap(silence, patience)

    # -- leases --

    @property
    def trusted_until(self) -> float:
        return self._session.trusted_until

    @property
    def can_lease(self) -> bool:
        return self.listener is not None and self.listener.ready

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        on_void: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
        held: Callable[[], Sequence[Ino]],
    ) -> None:
        self._session.forget = forget
        self._unrecorded = held
        if self.listener is not None:
            self.listener.on_recall = on_recall
            self.listener.on_loss = on_void
        self._session.on_lapse = on_void

    @property
    def delegates(self) -> bool:
        return self._session.delegates

    def watch_delegations(
        self, on_recall: Callable[[Sequence[Ino]], None], is_contended: Callable[[Ino], bool]
    ) -> None:
        self._delegations.is_contended = is_contended
        if self.listener is not None:
            self.listener.on_delegation_recall = on_recall

    @property
    def channel(self) -> str:
        return "" if self.listener is None else self.listener.channel

    def watch_journals(self, replay: Callable[[], Awaitable[set[SessionId]]]) -> None:
        self._replay = self._delegations.rescue = self._session.rescue = replay

    def keep_session(self) -> None:
        self._session.kept = True

    def is_open(self, ino: Ino) -> bool:
        return ino in self._files

    async def take_lease(self, ino: Ino) -> bool:
        if not self.can_lease:
            return False
        args = (self._session.id, self._session.epoch, ino, self._session.next_sequence())
        granted: bool = (await self._links.call("take_lease", args))[0][0]
        return granted and self.can_lease

    async def give_back(self, inos: Sequence[Ino]) -> None:
        args = (self._session.id, list(inos), self._session.sequence)
        await self._links.call("give_back", args)

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        rules.check_name(name)
        return rows.attr(await self._read("lookup", parent, name))

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        rules.check_name(name)
        row = (await self._delegations.read("find", parent, name))[0]
        if row[0] == errno.ENOENT:
            return None, bool(row[1])
        if row[0]:
            raise by_errno(row[0])
        return rows.attr(row), row[1]

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        return (await self.entries(ino, after, limit))[0]

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        records = await self._delegations.read("readdir", ino, after, limit)
        if records and records[0][0]:
            raise by_errno(records[0][0])
        return [rows.entry(row) for row in records], all(row["settled"] for row in records)

    async def read_tree(self, request: TreeRequest) -> TreeAnswer:
        args = (
            self._session.id,
            self._session.epoch,
            self._session.next_sequence(),
            request.directories,
            request.entries,
            request.content,
            request.maps_only,
            request.after,
            request.take,
            request.leases,
        )
        answer = trees.answer(await self._links.call("read_tree", args))
        if not self.can_lease:
            answer.leased.clear()
        return answer

    async def parent(self, ino: Ino) -> Ino:
        return Ino((await self._read("parent", ino))[2])

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        return rows.attr(await self._read("getattr", ino))

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        row = await self._read("stat", ino)
        return rows.attr(row), row[1]

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        rules.check_setattr(changes)
        row = await self._session.mutate(
            "setattr",
            ino,
            changes.mode,
            changes.uid,
            changes.gid,
            changes.size,
            changes.atime_ns,
            changes.mtime_ns,
            changes.atime_now,
            changes.mtime_now,
        )
        return rows.attr(row)

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        """Move access times forward. A repetition changes nothing, so the call needs no slot."""
        inos = sorted(atimes)
        times = [atimes[ino] for ino in inos]
        arguments = (self._session.id, self._session.epoch, inos, times)
        if not (await self._links.call("touch", arguments))[0][0]:
            raise Fenced

    async def readlink(self, ino: Ino) -> bytes:
        target: bytes = (await self._read("readlink", ino))[1]
        return target

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        mode = rules.node_mode(mode)
        rdev = rules.node_device(mode, rdev)
        return await self._make(parent, name, mode, caller, rdev=rdev)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        return await self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), caller)

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        rules.check_target(target)
        return await self._make(parent, name, stat.S_IFLNK | 0o777, caller, target=target)

    async def _make(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        target: bytes | None = None,
    ) -> Attr:
        rules.check_name(name)
        new = await self._session.fresh_id()
        delegate = self._delegations.wants(parent, mode, new)
        row = await self._growing(
            "make", parent, name, new, mode, caller.uid, caller.gid, rdev, target, delegate
        )
        return rows.attr(row)

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        rules.check_name(name)
        cookie = await self._session.fresh_id()
        return rows.attr(await self._session.mutate("link", ino, parent, name, cookie))

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        return await self._remove(parent, name, "file")

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        return await self._remove(parent, name, "empty")

    async def _remove(self, parent: Ino, name: bytes, kind: str) -> int | None:
        rules.check_name(name)
        self._release_now()  # so that a closed file is freed at once
        row = await self._session.mutate("remove", parent, name, kind, None, None)
        at_ns: int | None = row["ctime"]
        return at_ns

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """Remove a tree. If the call ends early, the end of this session frees the rest."""
        rules.check_name(name)
        self._release_now()
        expected = (None, None) if if_version is None else if_version
        with self._doubting(self._files):
            more = (await self._session.mutate("remove", parent, name, "tree", *expected))[1]
        if more:
            await self._purge_doomed()

    async def _purge_doomed(self) -> None:
        """Take trees apart that this session has removed.

        Their names are gone. If the session is fenced now, its reclaim frees the rest.
        """
        more = True
        with suppress(Fenced, Doubtful), self._doubting(self._files):
            while more:
                more = (
                    await self._session.mutate(
                        "purge", self._session.id, PURGE_LIMIT, is_change=False
                    )
                )[1]

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
        cookie = await self._session.fresh_id()
        row = await self._session.mutate(
            "rename", parent, name, new_parent, new_name, int(flags), cookie
        )
        at_ns: int | None = row["ctime"]
        return None if at_ns is None else Moved(at_ns, cookie if row["flag"] else 0)

    async def restore(self, ino: Ino, parent: Ino, name: bytes, link: Spot | None = None) -> Attr:
        rules.check_name(name)
        cookie = await self._session.fresh_id()
        row = link or (None, None)
        return rows.attr(await self._session.mutate("restore", ino, parent, name, cookie, *row))

    # -- files --

    async def reserve_slices(self, count: int) -> SliceId:
        """Reserve slice ids, usually from a range that an earlier call has reserved."""
        if not 0 < count <= _SLICES_MAX:
            raise InvalidArgument(f"a reservation is for 1 to {_SLICES_MAX} slice ids")
        while len(self._slices) < count:
            size, epoch = max(count, _SLICES), self.epoch
            first = await self._session.reserve("slice", size)
            if epoch != self.epoch:
                raise Fenced
            self._slices = range(first, first + size)
        slice_id, self._slices = self._slices[0], self._slices[count:]
        return SliceId(slice_id)

    async def commit(self, commit: Commit) -> Attr:
        rules.check_commit(commit)
        extents = commit.extents
        row = await self._growing(
            "commit",
            commit.ino,
            [extent.pos for extent in extents],
            [extent.slice_id for extent in extents],
            [extent.length for extent in extents],
            [b"" if extent.inline is not None else extent.checksums for extent in extents],
            [extent.inline for extent in extents],
            commit.append,
            commit.durable,
            commit.mtime_ns,
        )
        return rows.attr(row)

    async def allocate(self, ino: Ino, start: int, length: int, *, clear: bool, grow: bool) -> Attr:
        rules.check_range(start, length)
        return rows.attr(await self._growing("allocate", ino, start, length, clear, grow))

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        rules.check_copy(source, start, target, to, length)
        row = await self._session.mutate("copy_range", source, start, target, to, length)
        return rows.attr(row)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        rules.check_name(name)
        cookie = await self._session.fresh_id()
        expected = (None, None) if if_version is None else if_version
        row = await self._session.mutate("publish", ino, parent, name, cookie, *expected, if_absent)
        is_new: bool = row[1]
        return is_new

    # -- the volume --

    async def statfs(self) -> StatFs:
        await self._release_waiting()
        return StatFs(*(await self._links.call("statfs", ()))[0])

    async def sync(self) -> None:
        await self._session.mutate("sync")

    # -- extended attributes --

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        rules.check_xattr(name)
        value: bytes = (await self._read("getxattr", ino, name))[1]
        return value

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        rules.check_xattr(name, value)
        rules.check_xattr_flags(flags)
        await self._session.mutate("setxattr", ino, name, value, int(flags))

    async def listxattr(self, ino: Ino) -> list[bytes]:
        return list((await self._read("listxattr", ino))[1] or ())

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        rules.check_xattr(name)
        await self._session.mutate("setxattr", ino, name, None, int(XattrFlags.REPLACE))
