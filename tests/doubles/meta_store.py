"""A metadata store in memory: for tests and simulation, with the semantics of the real one.

Several `MemoryMeta` (sessions) share one `MemoryVolume`. No method awaits anything between reading
and changing the volume, so each is one atomic step of the event loop.
"""

from __future__ import annotations

import stat
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.doubles.meta_locks import MemoryLocks
from tests.doubles.meta_store_ranges import MemoryRanges
from tests.doubles.meta_store_trees import MemoryTrees
from tests.doubles.meta_store_upkeep import MemoryUpkeep
from tests.doubles.meta_volume import (
    LINK_MAX,
    Entry,
    MemoryVolume,
    Node,
    check_resizable,
    used_bytes,
)
from wrkfs.errors import (
    CrossesDevices,
    Exists,
    Fenced,
    InvalidArgument,
    IsDirectory,
    NoData,
    NoSpace,
    NotDirectory,
    NotEmpty,
    NotFound,
    NotPermitted,
    PreconditionFailed,
    Stale,
    TooManyLinks,
)
from wrkfs.meta import rules
from wrkfs.types import (
    ROOT_INO,
    Dentry,
    FileMap,
    Ino,
    Moved,
    RenameFlags,
    SessionId,
    SetAttr,
    SliceId,
    StatFs,
    XattrFlags,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from wrkfs.types import Attr, Caller, Commit

XATTR_LIST_MAX = 64 * 1024
"""Maximum length of the list of extended attribute names of one inode in bytes (Linux)."""


class MemoryMeta(MemoryRanges, MemoryTrees, MemoryUpkeep):
    """One session on a `MemoryVolume` (`MetaStore`)."""

    def __init__(self, volume: MemoryVolume | None = None) -> None:
        self._volume = MemoryVolume() if volume is None else volume
        self._session = SessionId(0)
        self._epoch = 0
        self._oldest: Callable[[], float | None] = lambda: None
        self.on_crash: Callable[[bool], None] | None = None
        self.locks = MemoryLocks(
            self._volume.locks, lambda: self._session, self._is_alive, self._version
        )

    def _is_alive(self) -> bool:
        return self._session in self._volume.epochs

    def _version(self, ino: Ino) -> int:
        node = self._volume.nodes.get(ino)
        return 0 if node is None else node.attr.version

    @property
    def upkeep(self) -> MemoryMeta:
        """The upkeep of the volume. In this double one object has all methods."""
        return self

    @property
    def copies(self) -> MemoryMeta:
        """Clones and snapshots, as `upkeep`."""
        return self

    @property
    def volume(self) -> MemoryVolume:
        """The shared state."""
        return self._volume

    @property
    def session(self) -> SessionId:
        """The registered session."""
        return self._session

    @property
    def epoch(self) -> int:
        """Generation of the registration."""
        return self._epoch

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """Set the crash function, which tests call."""
        self.on_crash = on_crash

    async def start(self) -> None:
        """Registers a session."""
        self._session = self._volume.register()
        self._epoch += 1
        self.watch_snapshots(self._oldest)
        self.locks.join()

    async def rejoin(self) -> None:
        """Registers anew after `Fenced`."""
        self._volume.end(self._session)
        await self.start()

    async def close(self) -> None:
        """Ends the session."""
        self._volume.end(self._session)

    def _alive(self) -> MemoryVolume:
        """The volume, if this session may still change it."""
        if self._session not in self._volume.epochs:
            raise Fenced
        return self._volume

    # -- names --

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        return self._volume.entry(parent, name)[1].attr

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        directory = self._volume.directory(ino)
        entries = sorted(
            (entry.cookie, name, entry.ino)
            for name, entry in directory.entries.items()
            if entry.cookie > after and not rules.is_unlisted(ino, name)
        )
        return [
            Dentry(cookie, name, self._volume.nodes[child].attr)
            for cookie, name, child in entries[:limit]
        ]

    async def parent(self, ino: Ino) -> Ino:
        return self._volume.directory(ino).parent

    # -- inodes --

    async def getattr(self, ino: Ino) -> Attr:
        return self._volume.just_gone(ino).attr

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        rules.check_setattr(changes)
        volume = self._alive()
        node = volume.node(ino)
        rules.check_writable(ino)
        mode = node.attr.mode
        if changes.size is not None:
            check_resizable(mode)
            if changes == SetAttr(size=node.attr.size) and not used_bytes(node.attr):
                return node.attr
            volume.resize(node, changes.size)
        chowned = changes.uid is not None or changes.gid is not None
        if changes.mode is not None:
            mode = stat.S_IFMT(mode) | stat.S_IMODE(changes.mode)
        elif chowned and not node.attr.is_dir:
            mode = rules.without_set_ids(mode)
        now = time.time_ns()
        attr = node.attr
        atime = now if changes.atime_now else changes.atime_ns
        mtime = now if changes.mtime_now else changes.mtime_ns
        return node.change(
            mode=mode,
            uid=attr.uid if changes.uid is None else changes.uid,
            gid=attr.gid if changes.gid is None else changes.gid,
            atime_ns=attr.atime_ns if atime is None else atime,
            mtime_ns=attr.mtime_ns if mtime is None else mtime,
        )

    async def touch(self, atimes: Mapping[Ino, int]) -> None:
        nodes = self._alive().nodes
        for ino, atime in atimes.items():
            if ino in nodes and nodes[ino].attr.atime_ns < atime and not rules.is_read_only(ino):
                nodes[ino].attr = replace(nodes[ino].attr, atime_ns=atime)

    async def readlink(self, ino: Ino) -> bytes:
        node = self._volume.node(ino)
        if not node.attr.is_symlink:
            raise InvalidArgument("not a symbolic link")
        return node.target

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
        volume = self._alive()
        rules.check_name(name)
        directory = volume.directory(parent)
        made = name not in directory.entries
        if made:
            rules.check_writable(parent)
            node = self._add(directory, name, stat.S_IFREG | stat.S_IMODE(mode), caller)
        else:
            node = volume.nodes[directory.entries[name].ino]
            if exclusive:
                raise Exists
            check_resizable(node.attr.mode)
        volume.sustain(node.attr.ino, self._session)
        return volume.file_map(node), made

    async def mknod(self, parent: Ino, name: bytes, mode: int, rdev: int, caller: Caller) -> Attr:
        mode = rules.node_mode(mode)
        rdev = rules.node_device(mode, rdev)
        return self._make(parent, name, mode, caller, rdev=rdev).attr

    async def mkdir(self, parent: Ino, name: bytes, mode: int, caller: Caller) -> Attr:
        return self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), caller).attr

    async def symlink(self, parent: Ino, name: bytes, target: bytes, caller: Caller) -> Attr:
        rules.check_target(target)
        node = self._make(parent, name, stat.S_IFLNK | 0o777, caller, size=len(target))
        node.target = target
        return node.attr

    def _make(
        self, parent: Ino, name: bytes, mode: int, caller: Caller, *, rdev: int = 0, size: int = 0
    ) -> Node:
        volume = self._alive()
        rules.check_name(name)
        directory = volume.directory(parent)
        if name in directory.entries:
            raise Exists
        rules.check_writable(parent)
        return self._add(directory, name, mode, caller, rdev=rdev, size=size)

    def _add(
        self,
        directory: Node,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        rdev: int = 0,
        size: int = 0,
    ) -> Node:
        """A new inode under a free name."""
        gid, subdirectory = caller.gid, stat.S_ISDIR(mode)
        if directory.attr.mode & stat.S_ISGID:
            gid = directory.attr.gid
            mode |= stat.S_ISGID if subdirectory else 0
        node = self._volume.add(mode, caller.uid, gid, nlink=1 + subdirectory, rdev=rdev, size=size)
        node.parent = directory.attr.ino
        directory.entries[name] = Entry(node.attr.ino, node.attr.ino)
        self._volume.touch(directory, int(subdirectory), node.attr.ctime_ns)
        return node

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        volume = self._alive()
        rules.check_name(name)
        rules.check_writable(parent)
        if rules.is_read_only(ino):
            raise CrossesDevices
        directory = volume.directory(parent)
        if name in directory.entries:
            raise Exists
        node = volume.node(ino)
        if node.attr.is_dir:
            raise NotPermitted("a directory has one name")
        if node.attr.nlink == 0:
            raise NotFound
        if node.attr.nlink >= LINK_MAX:
            raise TooManyLinks
        directory.entries[name] = Entry(ino, volume.fresh_id())
        volume.touch(directory)
        return node.change(nlink=node.attr.nlink + 1)

    async def unlink(self, parent: Ino, name: bytes) -> int | None:
        volume = self._alive()
        directory, node = self._removable(parent, name)
        if node.attr.is_dir:
            raise IsDirectory
        del directory.entries[name]
        volume.drop_link(node, parent, name, volume.touch(directory))
        return directory.attr.ctime_ns

    async def rmdir(self, parent: Ino, name: bytes) -> int | None:
        volume = self._alive()
        directory, node = self._removable(parent, name)
        if not node.attr.is_dir:
            raise NotDirectory
        if node.entries:
            raise NotEmpty
        del directory.entries[name]
        volume.drop_directory(node, parent, name, volume.touch(directory, -1))
        return directory.attr.ctime_ns

    async def remove_tree(
        self, parent: Ino, name: bytes, *, if_version: tuple[Ino, int] | None = None
    ) -> None:
        volume = self._alive()
        directory, node = self._removable(parent, name)
        if if_version is not None and (node.attr.ino, node.attr.version) != if_version:
            raise PreconditionFailed
        del directory.entries[name]
        before = volume.touch(directory, -1 if node.attr.is_dir else 0)
        volume.remove(node, parent, name, before)

    def _removable(self, parent: Ino, name: bytes) -> tuple[Node, Node]:
        """A directory and the inode of a name that may go. NotFound, NotDirectory, ReadOnly."""
        directory, node = self._volume.entry(parent, name)
        rules.check_writable(node.attr.ino)
        return directory, node

    async def rename(
        self,
        parent: Ino,
        name: bytes,
        new_parent: Ino,
        new_name: bytes,
        flags: RenameFlags = RenameFlags.NONE,
    ) -> Moved | None:
        volume = self._alive()
        rules.check_rename(flags)
        rules.check_name(new_name)
        source, node = volume.entry(parent, name)
        goal = volume.directory(new_parent)
        entry = goal.entries.get(new_name)
        if entry is None and flags & RenameFlags.EXCHANGE:
            raise NotFound
        if entry is not None and flags & RenameFlags.NOREPLACE:
            raise Exists
        target = None if entry is None else volume.nodes[entry.ino]
        for one in (node, goal, target):
            if one is not None:
                rules.check_writable(one.attr.ino)
        if target is node:
            return None
        self._refuse_loop(node, goal)
        if target is not None and flags & RenameFlags.EXCHANGE:
            self._refuse_loop(target, source)
            self._exchange(source, name, node, goal, new_name, target)
            return Moved(goal.attr.ctime_ns, 0)
        if target is not None:
            self._refuse_replacing(node, target)
        self._move(source, name, node, goal, new_name, target)
        return Moved(goal.attr.ctime_ns, goal.entries[new_name].cookie if target is None else 0)

    def _refuse_loop(self, node: Node, goal: Node) -> None:
        """A directory cannot go below itself."""
        if not node.attr.is_dir:
            return
        while goal is not node:
            if goal.attr.ino == ROOT_INO:
                return
            goal = self._volume.nodes[goal.parent]
        raise InvalidArgument("a directory cannot be moved below itself")

    @staticmethod
    def _refuse_replacing(node: Node, target: Node) -> None:
        if node.attr.is_dir and not target.attr.is_dir:
            raise NotDirectory
        if target.attr.is_dir and not node.attr.is_dir:
            raise IsDirectory
        if target.entries:
            raise NotEmpty

    def _exchange(
        self, source: Node, name: bytes, node: Node, goal: Node, new_name: bytes, target: Node
    ) -> None:
        source.entries[name].ino = target.attr.ino
        goal.entries[new_name].ino = node.attr.ino
        for moved, home in ((node, goal), (target, source)):
            if moved.attr.is_dir:
                moved.parent = home.attr.ino
            moved.change()
        balance = int(node.attr.is_dir) - int(target.attr.is_dir) if source is not goal else 0
        self._volume.touch(source, -balance)
        self._volume.touch(goal, balance)

    def _move(
        self,
        source: Node,
        name: bytes,
        node: Node,
        goal: Node,
        new_name: bytes,
        target: Node | None,
    ) -> None:
        volume = self._volume
        moved = int(node.attr.is_dir)
        del source.entries[name]
        volume.touch(source, -moved)
        if target is None:
            goal.entries[new_name] = Entry(node.attr.ino, volume.fresh_id())
        else:
            goal.entries[new_name].ino = node.attr.ino
            moved -= int(target.attr.is_dir)
            if target.attr.is_dir:
                volume.drop_directory(target, goal.attr.ino, new_name)
            else:
                volume.drop_link(target, goal.attr.ino, new_name)
        volume.touch(goal, moved)
        if node.attr.is_dir:
            node.parent = goal.attr.ino
        node.change(ctime_ns=goal.attr.ctime_ns)

    # -- files --

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        volume = self._alive()
        node = volume.take_up(ino)
        if truncate:
            rules.check_writable(ino)
        check_resizable(node.attr.mode)
        if truncate:
            volume.resize(node, 0)
            node.change(mtime_ns=time.time_ns())
        volume.sustain(ino, self._session)
        return volume.file_map(node)

    async def release(self, ino: Ino) -> None:
        self._alive().release(ino, self._session)

    async def file_map(self, ino: Ino) -> FileMap:
        return self._volume.file_map(self._volume.node(ino))

    async def reserve_slices(self, count: int) -> SliceId:
        if count <= 0:
            raise InvalidArgument("nothing to reserve")
        return self._alive().reserve(count, self._session)

    async def commit(self, commit: Commit) -> Attr:
        rules.check_commit(commit)
        volume = self._alive()
        try:
            node = volume.node(commit.ino)
        except NotFound:
            raise Stale from None
        check_resizable(node.attr.mode)
        if commit.extents:
            rules.check_writable(commit.ino)
        volume.commit(node, commit)
        return node.attr

    async def create_unlinked(self, mode: int, caller: Caller) -> FileMap:
        volume = self._alive()
        node = volume.add(stat.S_IFREG | stat.S_IMODE(mode), caller.uid, caller.gid, nlink=0)
        volume.sustain(node.attr.ino, self._session)
        return volume.file_map(node)

    async def publish(
        self,
        ino: Ino,
        parent: Ino,
        name: bytes,
        *,
        if_version: tuple[Ino, int] | None = None,
        if_absent: bool = False,
    ) -> bool:
        volume = self._alive()
        rules.check_name(name)
        rules.check_writable(parent)
        directory = volume.directory(parent)
        node = volume.node(ino)
        if node.attr.nlink or not node.attr.is_file or ino in volume.trash:
            raise InvalidArgument("only a file without a name can be published")
        entry = directory.entries.get(name)
        old = None if entry is None else volume.nodes[entry.ino]
        if old is not None and old.attr.is_dir:
            raise IsDirectory
        if if_version is not None and (
            old is None or (old.attr.ino, old.attr.version) != if_version
        ):
            raise PreconditionFailed
        if if_absent and old is not None:
            raise PreconditionFailed
        if old is not None and not old.attr.is_file:
            raise Exists
        if entry is None or old is None:
            gid = directory.attr.gid if directory.attr.mode & stat.S_ISGID else node.attr.gid
            directory.entries[name] = Entry(ino, volume.fresh_id())
            node.change(nlink=1, gid=gid)
        else:
            mode = rules.without_set_ids(old.attr.mode)
            entry.ino = ino
            node.change(nlink=1, mode=mode, uid=old.attr.uid, gid=old.attr.gid)
            volume.drop_link(old, parent, name)
        volume.touch(directory)
        return old is None

    # -- the volume --

    async def statfs(self) -> StatFs:
        volume = self._volume
        return StatFs(
            volume.bytes_used, volume.bytes_limit, volume.inodes_used, volume.inodes_limit
        )

    async def sync(self) -> None:
        self._alive()

    # -- extended attributes --

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        rules.check_xattr(name)
        xattrs = self._volume.node(ino).xattrs
        if name not in xattrs:
            raise NoData
        return xattrs[name]

    async def setxattr(
        self, ino: Ino, name: bytes, value: bytes, flags: XattrFlags = XattrFlags.NONE
    ) -> None:
        rules.check_xattr(name, value)
        rules.check_xattr_flags(flags)
        node = self._alive().node(ino)
        rules.check_writable(ino)
        if name in node.xattrs and flags & XattrFlags.CREATE:
            raise Exists
        if name not in node.xattrs and flags & XattrFlags.REPLACE:
            raise NoData
        names = sum(len(known) + 1 for known in {*node.xattrs, name})
        if names > XATTR_LIST_MAX:
            raise NoSpace("too many extended attributes")
        node.xattrs[name] = bytes(value)
        node.change()

    async def listxattr(self, ino: Ino) -> list[bytes]:
        return sorted(self._volume.node(ino).xattrs)

    async def removexattr(self, ino: Ino, name: bytes) -> None:
        rules.check_xattr(name)
        node = self._alive().node(ino)
        rules.check_writable(ino)
        if name not in node.xattrs:
            raise NoData
        del node.xattrs[name]
        node.change()
