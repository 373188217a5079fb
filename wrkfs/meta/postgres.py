"""The real metadata store: each operation is one call of one SQL function, one round trip.

Semantics stand in `interface.MetaStore` and `functions/*.sql`; this file translates values. Calls
survive lost connections (`links`), are applied once (`sessions`), and end within a minute.

After `Fenced` every mutating call fails until `rejoin`. The caller then refuses the bytes that were
written and not committed (each handle of such a file reports it at its next fsync or close), calls
`rejoin`, opens its files anew, and goes on with a new session. A call that raised `Fenced` changed
nothing and may be made again; of one that raised `Doubtful` nobody knows.
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
from wrkfs.meta import rows, rules
from wrkfs.meta.handles import OpenFiles
from wrkfs.meta.links import DEADLINE, Links
from wrkfs.meta.listener import Listener
from wrkfs.meta.postgres_files import PURGE_LIMIT, PostgresFiles
from wrkfs.meta.sessions import CLOSE_DEADLINE, MountSession
from wrkfs.types import Ino, Moved, RenameFlags, SessionId, SliceId, StatFs, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import timedelta

    from wrkfs.config import VolumeConfig
    from wrkfs.types import Attr, Caller, Commit, Dentry, SetAttr

CONNECTIONS = 4
"""Calls to the database at once."""
_SLICES = 16
"""Slice ids fetched at once, at least: compaction takes one at a time."""
_SLICES_MAX = 1 << 20


class PostgresMeta(PostgresFiles):
    """One session on a volume's schema; see `interface.MetaStore` for every method.

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
    ) -> None:
        """`deadline` is how many seconds of an outage cost latency only. `leases`: takes some."""
        super().__init__()
        self._links = Links(config, connections, deadline)
        self.listener = Listener(self._links) if leases else None
        self._session = MountSession(
            self._links,
            kind,
            lambda: [*self._files.held, *self._lightly_held()],
            self._crashed,
            self.listener.channel if self.listener else None,
        )
        self._session.tidy = self.tidy
        self._on_crash: Callable[[bool], None] | None = None
        self._slices = range(0)

    @property
    def session(self) -> SessionId:
        """The registered session."""
        return self._session.id

    @property
    def epoch(self) -> int:
        """Generation of the registration."""
        return self._session.epoch

    @property
    def fenced(self) -> bool:
        """True once the database refused this session; `rejoin` ends it."""
        return self._session.fenced

    async def start(self) -> None:
        """Connects and registers. Raises Unavailable after a minute without database."""
        await self._session.register()
        if self.listener is not None:
            await self._session.fence_dead()
            await self.listener.start()

    async def rejoin(self) -> None:
        """Registers a new session with a higher epoch; nothing is open in it."""
        self._files = OpenFiles()
        self._slices = range(0)
        await self._session.register()

    async def close(self, *, deadline: float = CLOSE_DEADLINE) -> None:
        """Ends the session within `deadline` seconds, also in an outage. Idempotent."""
        try:
            await self._end_releases()
            await self._session.end(deadline)
        finally:
            if self.listener is not None:
                await self.listener.close()
            await self._links.close()

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """See MetaStore."""
        self._on_crash = on_crash

    def _crashed(self, lost: bool) -> None:
        self._files.doubt()  # releases may have been undone
        if self._on_crash is not None:
            self._on_crash(lost)

    async def fence(self, session: SessionId, *, force: bool = False) -> bool:
        """Fences another session; False while it has not expired.

        `force` is for who knows that its process is dead. What it held is reclaimed at once.
        """
        done: bool = (await self._links.call("fence", (session, force)))[0][0]
        if done and session != self._session.id:
            await self._session.reclaim(session)
        return done

    async def reap(self, silence: timedelta, patience: timedelta) -> None:
        """Looks after sessions that went away; the heartbeat does it by itself now and then."""
        await self._session.reap(silence, patience)

    # -- leases --

    @property
    def trusted_until(self) -> float:
        """See LeaseStore."""
        return self._session.trusted_until

    @property
    def can_lease(self) -> bool:
        """See LeaseStore."""
        return self.listener is not None and self.listener.ready

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        on_void: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
        held: Callable[[], Sequence[Ino]],
    ) -> None:
        """See LeaseStore."""
        self._session.forget = forget
        self._lightly_held = held
        if self.listener is not None:
            self.listener.on_recall = on_recall
            self.listener.on_loss = on_void
        self._session.on_lapse = on_void

    async def take_lease(self, ino: Ino) -> bool:
        """See LeaseStore."""
        if not self.can_lease:
            return False
        args = (self._session.id, self._session.epoch, ino, self._session.next_sequence())
        taken: bool = (await self._links.call("take_lease", args))[0][0]
        return taken and self.can_lease

    async def give_back(self, inos: Sequence[Ino]) -> None:
        """See LeaseStore."""
        args = (self._session.id, list(inos), self._session.sequence)
        await self._links.call("give_back", args)

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        """See MetaStore."""
        rules.check_name(name)
        return rows.attr(await self._read("lookup", parent, name))

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        """See LeaseStore."""
        rules.check_name(name)
        row = (await self._links.call("find", (parent, name)))[0]
        if row[0] == errno.ENOENT:
            return None, bool(row[1])
        if row[0]:
            raise by_errno(row[0])
        return rows.attr(row), row[1]

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        """See MetaStore."""
        return (await self.entries(ino, after, limit))[0]

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        """See LeaseStore."""
        found = await self._links.call("readdir", (ino, after, limit))
        if found and found[0][0]:
            raise by_errno(found[0][0])
        return [rows.entry(row) for row in found], all(row[16] for row in found)

    async def parent(self, ino: Ino) -> Ino:
        """See MetaStore."""
        return Ino((await self._read("parent", ino))[2])

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        """See MetaStore."""
        return rows.attr(await self._read("getattr", ino))

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        """See LeaseStore."""
        row = await self._read("stat", ino)
        return rows.attr(row), row[1]

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        """See MetaStore."""
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
        """See MetaStore. Outside of the slots: applied twice it is the same."""
        inos = sorted(atimes)
        times = [atimes[ino] for ino in inos]
        arguments = (self._session.id, self._session.epoch, inos, times)
        if not (await self._links.call("touch", arguments))[0][0]:
            raise Fenced

    async def readlink(self, ino: Ino) -> bytes:
        """See MetaStore."""
        target: bytes = (await self._read("readlink", ino))[1]
        return target

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        """See MetaStore."""
        mode = rules.node_mode(mode)
        rdev = rules.node_device(mode, rdev)
        return await self._make(parent, name, mode, caller, rdev=rdev)

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        """See MetaStore."""
        return await self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), caller)

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        """See MetaStore."""
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
        row = await self._growing(
            "make", parent, name, new, mode, caller.uid, caller.gid, rdev, target
        )
        return rows.attr(row)

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """See MetaStore."""
        rules.check_name(name)
        cookie = await self._session.fresh_id()
        return rows.attr(await self._session.mutate("link", ino, parent, name, cookie))

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        """See MetaStore."""
        return await self._remove(parent, name, "file")

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        """See MetaStore."""
        return await self._remove(parent, name, "empty")

    async def _remove(self, parent: Ino, name: bytes, kind: str) -> int | None:
        rules.check_name(name)
        self._release_now()  # a file that is closed here and removed goes at once
        row = await self._session.mutate("remove", parent, name, kind, None, None)
        moved: int | None = row["ctime"]
        return moved

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        """See MetaStore. If it ends early, the rest goes when this session ends."""
        rules.check_name(name)
        self._release_now()
        demanded = (None, None) if if_version is None else if_version
        with self._doubting(self._files):
            more = (await self._session.mutate("remove", parent, name, "tree", *demanded))[1]
        # The name is gone: what a fence leaves of the tree is reclaimed with the session.
        with suppress(Fenced, Doubtful), self._doubting(self._files):
            while more:
                more = (
                    await self._session.mutate("purge", self._session.id, PURGE_LIMIT, minded=False)
                )[1]

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        """See MetaStore."""
        rules.check_rename(flags)
        rules.check_name(name)
        rules.check_name(new_name)
        cookie = await self._session.fresh_id()
        row = await self._session.mutate(
            "rename", parent, name, new_parent, new_name, int(flags), cookie
        )
        at_ns: int | None = row["ctime"]
        return None if at_ns is None else Moved(at_ns, cookie if row["flag"] else 0)

    # -- files --

    async def reserve_slices(self, count: int) -> SliceId:
        """See MetaStore. Usually answered from a range fetched before."""
        if not 0 < count <= _SLICES_MAX:
            raise InvalidArgument("number of slice ids")
        while len(self._slices) < count:
            size, epoch = max(count, _SLICES), self.epoch
            first = await self._session.reserve("slice", size)
            if epoch != self.epoch:
                raise Fenced
            self._slices = range(first, first + size)
        taken, self._slices = self._slices[0], self._slices[count:]
        return SliceId(taken)

    async def commit(self, commit: Commit) -> Attr:
        """See MetaStore."""
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

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        """See MetaStore."""
        rules.check_name(name)
        cookie = await self._session.fresh_id()
        demanded = (None, None) if if_version is None else if_version
        row = await self._session.mutate("publish", ino, parent, name, cookie, *demanded, if_absent)
        made: bool = row[1]
        return made

    # -- the volume --

    async def statfs(self) -> StatFs:
        """See MetaStore."""
        await self._release_waiting()
        return StatFs(*(await self._links.call("statfs", ()))[0])

    async def sync(self) -> None:
        """See MetaStore."""
        await self._session.mutate("sync")

    # -- extended attributes --

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """See MetaStore."""
        rules.check_xattr(name)
        value: bytes = (await self._read("getxattr", ino, name))[1]
        return value

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        """See MetaStore."""
        rules.check_xattr(name, value)
        rules.check_xattr_flags(flags)
        await self._session.mutate("setxattr", ino, name, value, int(flags))

    async def listxattr(self, ino: Ino) -> list[bytes]:
        """See MetaStore."""
        return list((await self._read("listxattr", ino))[1] or ())

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        """See MetaStore."""
        rules.check_xattr(name)
        await self._session.mutate("setxattr", ino, name, None, int(XattrFlags.REPLACE))
