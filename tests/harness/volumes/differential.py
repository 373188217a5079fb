"""Plays one random sequence of calls on two volumes, and compares every answer and every row.

What two volumes cannot have in common is normalised, and nothing else:

* Inode numbers: an inode is named by the order in which it appeared. Numbers are never used twice,
  so this loses nothing.
* Times of the clock: `Player.when` replaces a time by the number of the step in whose call it was
  taken. A time outside of every call is shown as such, and differs. Steps do not share a
  microsecond. Times that a caller sets are before 10^15 ns and are compared as they are.
* Cookies: listings are compared as sets, and for each name whether it kept the cookie that the last
  listing of the directory showed. Cookies must grow within a listing.
* `Attr.parent` of other inodes than directories: a store may not know it (0).
* An inode that a session makes and removes within one batch never reaches the database. It is not
  in the trash, and no later step uses it.
* A session uses the number of an inode only if the database has it or the session made it: others
  learn of it by a call that recalls the delegation.
"""

from __future__ import annotations

import hashlib
import stat
import time
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from tests.harness.volumes.extents import Objects
from wrkfs import errors
from wrkfs.layout import CHUNK_SIZE, MAX_FILE_SIZE
from wrkfs.types import ROOT_INO, Caller, Commit, Ino, RenameFlags, SetAttr, XattrFlags

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.harness.volumes.random_steps import Step
    from wrkfs.meta.postgres.store import PostgresMeta
    from wrkfs.types import Attr, FileMap

Answer: TypeAlias = object
_EXPLICIT = 10**15
"""Times below are set by callers, in ns."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = (b"a", b"b", b"c", b"a", b"b", b"d", b"n" * 255)
STRANGE = (b"n" * 256, b"", b".", b"a/b", b"x\0", b".snapshots")
MODES = (0o644, 0o755, 0o1777, 0o2775, 0o6711, 0o2644, 0)
TARGETS = (b"t", b"../a", b"t" * 4095, b"t" * 4096, b"")


class Player:
    """Plays steps on the sessions of one volume, and returns normalised answers."""

    def __init__(
        self, sessions: Sequence[PostgresMeta], settle: Callable[[int], Awaitable[object]]
    ) -> None:
        """`settle` returns when the database has the releases of a session."""
        self._sessions = sessions
        self._settle = settle
        self._inodes: list[Ino] = [ROOT_INO]
        self._directories: list[int] = [0]
        self._files: list[int] = []
        self._hidden: list[int] = []
        self._spots: dict[tuple[Ino, bytes], Ino] = {}
        """Names that the answers so far say exist, or that existed."""
        self._opens: list[tuple[int, int]] = []
        self.dead: set[int] = set()
        """Inodes that existed only within one batch."""
        self.unknown: set[int] = set()
        """Inodes whose numbers the session of the next step cannot know."""
        self._objects = Objects()
        self._cookies: dict[tuple[Ino, bytes], int] = {}
        self._starts: list[int] = []
        self._ends: list[int] = []

    async def play(self, step: Step) -> Answer:
        """Make the call of a step; return its answer, or the class of its error."""
        last = self._ends[-1] if self._ends else 0
        while time.time_ns() // 1000 * 1000 <= last:
            pass
        self._starts.append(time.time_ns() // 1000 * 1000)
        try:
            call = getattr(self, f"_{step.verb}")
            result = await call(self._sessions[step.session], step.session, *step.picks)
        except errors.WrkfsError as error:
            result = type(error)
        self._ends.append(time.time_ns())
        return self._plain(result)

    # -- normalisation --

    def when(self, ns: int | None) -> Answer:
        """Return a time of the clock as the number of the step that took it."""
        if ns is None or ns < _EXPLICIT:
            return ns
        at = bisect_right(self._starts, ns) - 1
        return f"step {at}" if at >= 0 and ns <= self._ends[at] else f"outside, after step {at}"

    def number(self, ino: Ino) -> int:
        """Return the name of an inode, which it gets when it first appears."""
        if ino not in self._inodes:
            self._inodes.append(ino)
        return self._inodes.index(ino)

    @property
    def inodes(self) -> list[Ino]:
        """Inodes in the order of their names."""
        return self._inodes

    def attributes(self, attr: Attr) -> Answer:
        """Return all fields of attributes."""
        fresh = attr.ino not in self._inodes
        number = self.number(attr.ino)
        if fresh:
            (self._directories if attr.is_dir else self._files).append(number)
        above = self.number(attr.parent) if attr.is_dir and attr.parent else None
        times = tuple(self.when(ns) for ns in (attr.atime_ns, attr.mtime_ns, attr.ctime_ns))
        owner = (attr.nlink, attr.uid, attr.gid, attr.rdev)
        return number, oct(attr.mode), owner, attr.size, times, attr.version, attr.holes, above

    def _plain(self, result: object) -> Answer:
        """Return an answer that can be compared; times are known only after the call."""
        return result() if callable(result) and not isinstance(result, type) else result

    def _seen(self, attr: Attr) -> Callable[[], Answer]:
        return lambda: self.attributes(attr)

    def _read(self, found: FileMap) -> Answer:
        data = self._objects.read(found)
        return data if len(data) < 100 else (len(data), hashlib.sha256(data).hexdigest())

    def _map(self, found: FileMap) -> Callable[[], Answer]:
        return lambda: (self.attributes(found.attr), self._read(found))

    # -- arguments --

    @staticmethod
    def _name(pick: int) -> bytes:
        return STRANGE[pick % len(STRANGE)] if pick % 31 == 30 else NAMES[pick % len(NAMES)]

    def _pick(self, pool: list[int], pick: int) -> Ino:
        """Return one of a pool that has a name; rarely any inode."""
        lost = self.dead | self.unknown
        named = {0, *map(self.number, self._spots.values())}
        alive = [n for n in pool if n not in lost and (n in named or pick % 11 == 10)]
        if pick % 23 == 22 or not alive:
            alive = [n for n in range(len(self._inodes)) if n not in lost]
        return self._inodes[alive[pick % len(alive)]]

    def _folder(self, pick: int) -> Ino:
        return self._pick(self._directories, pick)

    def _file(self, pick: int) -> Ino:
        return self._pick(self._files, pick)

    def _any(self, pick: int) -> Ino:
        return self._pick(list(range(len(self._inodes))), pick)

    def _spot(self, a: int, b: int, kind: list[int]) -> tuple[Ino, bytes]:
        """Return a directory and a name: mostly one that exists, of an inode of this kind."""
        lost = self.dead | self.unknown
        spots = [
            (folder, name)
            for (folder, name), ino in self._spots.items()
            if self.number(folder) not in lost and self.number(ino) in kind
        ]
        if a % 7 == 6 or not spots:
            return self._folder(a), self._name(b)
        return spots[b % len(spots)]

    def _made(self, folder: Ino, name: bytes, attr: Attr) -> Callable[[], Answer]:
        self._spots[folder, name] = attr.ino
        return self._seen(attr)

    # -- names --

    async def _create(
        self, m: PostgresMeta, s: int, a: int, b: int, c: int, d: int, e: int, *_: int
    ) -> Answer:
        folder, name, caller = self._folder(a), self._name(b), Caller(c % 3, c % 5)
        mode = MODES[d % len(MODES)]
        found, new = await m.create(folder, name, mode, caller, exclusive=c % 2 == 0)
        self._spots[folder, name] = found.attr.ino
        if e % 3:
            await m.release(found.attr.ino)
            await self._settle(s)
        else:
            self._opens.append((s, self.number(found.attr.ino)))
        if new:
            self._files.append(self.number(found.attr.ino))
        return lambda: (self.attributes(found.attr), new, self._read(found))

    async def _mkdir(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, *__: int
    ) -> Answer:
        mode, caller = MODES[d % len(MODES)], Caller(c % 3, c % 5)
        folder, name = self._folder(a), self._name(b)
        return self._made(folder, name, await m.mkdir(folder, name, mode, caller))

    async def _mknod(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, *__: int
    ) -> Answer:
        kinds = (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFREG, 0, stat.S_IFDIR)
        mode = kinds[c % len(kinds)] | MODES[d % len(MODES)]
        caller, folder, name = Caller(c % 3, c % 5), self._folder(a), self._name(b)
        return self._made(folder, name, await m.mknod(folder, name, mode, d, caller))

    async def _symlink(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, *__: int
    ) -> Answer:
        target, caller = TARGETS[d % len(TARGETS)], Caller(c % 3, c % 5)
        folder, name = self._folder(a), self._name(b)
        return self._made(folder, name, await m.symlink(folder, name, target, caller))

    async def _link(self, m: PostgresMeta, _: int, a: int, b: int, c: int, *__: int) -> Answer:
        folder, name = self._folder(a), self._name(b)
        return self._made(folder, name, await m.link(self._file(c), folder, name))

    async def _unlink(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> Answer:
        spot = self._spot(a, b, self._files)
        at_ns = await m.unlink(*spot)
        self._spots.pop(spot, None)
        return lambda: self.when(at_ns)

    async def _rmdir(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> Answer:
        spot = self._spot(a, b, self._directories)
        at_ns = await m.rmdir(*spot)
        self._spots.pop(spot, None)
        return lambda: self.when(at_ns)

    async def _remove_tree(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> None:
        spot = self._spot(a, b, self._directories)
        await m.remove_tree(*spot)
        self._spots.pop(spot, None)

    async def _rename(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, e: int, *__: int
    ) -> Answer:
        kind = self._directories if e % 3 == 0 else self._files
        source, name = self._spot(a, b, kind)
        target, new_name = source if c % 2 else self._folder(c), self._name(d)
        if d % 2:
            target, new_name = self._spot(c, d, kind if d % 5 else self._directories)
        flags = RenameFlags((0, 0, 0, 1, 2, 0, 3)[e % 7])
        moved = await m.rename(source, name, target, new_name, flags)
        ino = self._spots.pop((source, name), None)
        other = self._spots.pop((target, new_name), None)
        if ino is not None:
            self._spots[target, new_name] = ino
        if other is not None and flags & RenameFlags.EXCHANGE:
            self._spots[source, name] = other
        return lambda: None if moved is None else (self.when(moved.at_ns), moved.cookie > 0)

    async def _publish(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, *__: int
    ) -> Answer:
        ino = self._pick(self._hidden or self._files, c)
        demanded = None
        if d % 4 == 0:
            target = self._file(d)
            demanded = (target, (await m.getattr(target)).version)
        new: bool = await m.publish(
            ino, self._folder(a), self._name(b), if_version=demanded, if_absent=d % 4 == 1
        )
        return new

    async def _restore(self, m: PostgresMeta, _: int, a: int, b: int, c: int, *__: int) -> Answer:
        kept = [one for one in await m.upkeep.list_trash(None, 1000) if one.ino in self._inodes]
        kept.sort(key=lambda one: (self.number(one.ino), self.number(one.parent), one.name))
        kept = [one for one in kept if self.number(one.ino) not in self.dead]
        if not kept:
            return "nothing to restore"
        one = kept[c % len(kept)]
        link = (one.parent, one.name) if one.linked else None
        folder, name = self._folder(a), self._name(b)
        return self._made(folder, name, await m.restore(one.ino, folder, name, link))

    # -- inodes and files --

    async def _setattr(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, e: int, *__: int
    ) -> Answer:
        changes = SetAttr(
            mode=MODES[b % len(MODES)] if b % 2 else None,
            uid=c % 4 if c % 3 == 0 else None,
            gid=d % 4 if d % 3 == 0 else None,
            atime_ns=e * 1_000_003 if e % 5 == 0 else None,
            mtime_ns=e * 1_000_007 if e % 5 in {0, 1} else None,
            atime_now=e % 5 == 2,
            mtime_now=e % 5 in {2, 3},
        )
        return self._seen(await m.setattr(self._any(a), changes))

    async def _resize(self, m: PostgresMeta, _: int, a: int, b: int, c: int, *__: int) -> Answer:
        size = (0, 0, 1, 5, 70_000, -1, MAX_FILE_SIZE + 1)[b % 7]
        mtime = c * 999_983 if c % 3 == 0 else None
        changes = SetAttr(size=size, mtime_ns=mtime, mode=0o4755 if c % 4 == 0 else None)
        return self._seen(await m.setattr(self._file(a), changes))

    async def _touch(self, m: PostgresMeta, _: int, a: int, b: int, c: int, *__: int) -> Answer:
        inos = [self._any(a), self._file(b)]
        await m.touch({ino: c * 1_000_033 + n for n, ino in enumerate(inos)})
        return self._seen(await m.getattr(inos[0]))

    async def _open(self, m: PostgresMeta, s: int, a: int, b: int, *__: int) -> Answer:
        found = await m.open(self._file(a), truncate=b % 3 == 0)
        self._opens.append((s, self.number(found.attr.ino)))
        return self._map(found)

    async def _release(self, m: PostgresMeta, s: int, a: int, *_: int) -> Answer:
        mine = [one for one in self._opens if one[0] == s]
        if not mine:
            return "nothing is open"
        one = mine[a % len(mine)]
        self._opens.remove(one)
        ino = self._inodes[one[1]]
        await m.release(ino)
        await self._settle(s)
        return one

    async def _commit(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, e: int, *__: int
    ) -> Answer:
        extents = [self._objects.inline((0, 0, 3, 40)[b % 4], b"x" * (1 + c % 9))]
        if d % 3 == 0:
            extents.append(self._objects.stored(d % 20, b"y" * (1 + e % 50)))
        if d % 67 == 0:
            extents.append(self._objects.inline(CHUNK_SIZE - 3, b"z" * 7))
        mtime = e * 1_000_037 if e % 3 == 0 else None
        commit = Commit(
            self._file(a), tuple(extents), append=e % 2 == 0, durable=False, mtime_ns=mtime
        )
        return self._seen(await m.commit(commit))

    async def _allocate(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, *__: int
    ) -> Answer:
        clear, grow = d % 2 == 0, d % 3 == 0
        found = await m.allocate(self._file(a), b % 9, 1 + c % 30, clear=clear, grow=grow)
        return self._seen(found)

    async def _copy_range(
        self, m: PostgresMeta, _: int, a: int, b: int, c: int, d: int, *__: int
    ) -> Answer:
        return self._seen(await m.copy_range(self._file(a), c % 3, self._file(b), d % 9, 1 + c % 4))

    async def _setxattr(self, m: PostgresMeta, _: int, a: int, b: int, c: int, *__: int) -> None:
        name, flags = b"user.%d" % (b % 3), XattrFlags(c % 3)
        await m.setxattr(self._any(a), name, b"v" * (c % 50), flags)

    async def _removexattr(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> None:
        await m.removexattr(self._any(a), b"user.%d" % (b % 3))

    async def _xattrs(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> Answer:
        ino = self._any(a)
        names = await m.listxattr(ino)
        return names, await m.getxattr(ino, b"user.%d" % (b % 3))

    async def _hide(self, m: PostgresMeta, s: int, a: int, b: int, *__: int) -> Answer:
        found = await m.create_unlinked(MODES[b % len(MODES)], Caller(a % 3, a % 5))
        self._hidden.append(self.number(found.attr.ino))
        self._files.append(self._hidden[-1])
        self._opens.append((s, self._hidden[-1]))
        return self._map(found)

    # -- reading --

    async def _lookup(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> Answer:
        return self._seen(await m.lookup(self._folder(a), self._name(b)))

    async def _readdir(self, m: PostgresMeta, _: int, a: int, b: int, *__: int) -> Answer:
        found = await self.listing(m, self._folder(a), 1 + b % 3 if b % 2 else 1000)
        return lambda: [(name, kept, self.attributes(attr)) for name, kept, attr in found]

    async def _walk(self, m: PostgresMeta, _: int, *__: int) -> Answer:
        found = []
        for ino in [self._inodes[n] for n in self._directories if n not in self.dead]:
            if ino in self._spots.values() or ino == ROOT_INO:
                try:
                    await m.lookup(*next(k for k, v in self._spots.items() if v == ino))
                    found += await self.listing(m, ino, 1000)
                    found.append((b"", True, await m.getattr(ino)))
                except (errors.NotFound, StopIteration):
                    continue
        return lambda: [(name, kept, self.attributes(attr)) for name, kept, attr in found]

    async def _getattr(self, m: PostgresMeta, _: int, a: int, *__: int) -> Answer:
        return self._seen(await m.getattr(self._any(a)))

    async def _parent(self, m: PostgresMeta, _: int, a: int, *__: int) -> Answer:
        return self.number(await m.parent(self._folder(a)))

    async def _readlink(self, m: PostgresMeta, _: int, a: int, *__: int) -> Answer:
        return await m.readlink(self._file(a))

    async def _content(self, m: PostgresMeta, _: int, a: int, *__: int) -> Answer:
        return self._map(await m.file_map(self._file(a)))

    async def _statfs(self, m: PostgresMeta, *_: int) -> Answer:
        return await m.statfs()

    async def _sync(self, m: PostgresMeta, *_: int) -> None:
        await m.sync()

    async def listing(self, m: PostgresMeta, ino: Ino, page: int) -> list[tuple[bytes, bool, Attr]]:
        """Return names, whether each kept its cookie, and attributes, in pages of this size."""
        found, after = [], 0
        while entries := await m.readdir(ino, after, page):
            cookies = [after, *(entry.cookie for entry in entries)]
            assert cookies == sorted(set(cookies)), "cookies of a listing must grow"
            found += entries
            after = entries[-1].cookie
        shown = sorted(
            (e.name, self._cookies.get((ino, e.name)) == e.cookie, e.attr) for e in found
        )
        for entry in found:
            self._cookies[ino, entry.name] = entry.cookie
        return shown

    # -- the whole volume --

    async def picture(self, m: PostgresMeta) -> dict[int | str, Answer]:
        """Return everything that calls show of every inode, of the trash and of the usage."""
        shown: dict[int | str, Answer] = {"usage": await m.statfs()}
        for number, ino in enumerate(list(self._inodes)):
            if number not in self.dead:
                try:
                    shown[number] = await self._everything(m, ino)
                except errors.WrkfsError as error:
                    shown[number] = type(error)
        shown["trash"] = sorted(
            (
                self.number(one.ino), self.number(one.parent), one.name, oct(one.mode), one.uid,
                one.gid, one.size, str(self.when(one.mtime_ns)), one.nlink, one.linked,
                str(self.when(one.dir_mtime_ns)),
                str(self.when((one.deleted_at - _EPOCH) // timedelta(microseconds=1) * 1000)),
            )
            for one in await m.upkeep.list_trash(None, 1000)
        )  # fmt: skip
        return shown

    async def _everything(self, m: PostgresMeta, ino: Ino) -> Answer:
        attr = await m.getattr(ino)
        xattrs = {name: await m.getxattr(ino, name) for name in await m.listxattr(ino)}
        content: object = None
        if attr.is_file:
            content = self._read(await m.file_map(ino))
        elif attr.is_symlink:
            content = await m.readlink(ino)
        elif attr.is_dir:
            entries = await self.listing(m, ino, 1000)
            below = [(name, kept, self.attributes(one)) for name, kept, one in entries]
            content = (below, self.number(await m.parent(ino)))
        return self.attributes(attr), xattrs, content
