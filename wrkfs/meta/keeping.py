"""What is kept by lease, and the life of the leases: taken, recalled, void. See `leased`."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.errors import Doubtful, StorageError, Unavailable, WrkfsError
from wrkfs.meta.delegate import DelegatingMeta
from wrkfs.meta.kept import MAP_BYTES, MAP_REFS, Changes, Kept, Mark, inline_bytes, weight
from wrkfs.meta.light import LightOpens
from wrkfs.meta.sessions import boottime
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from wrkfs.meta.kept import Change, Key
    from wrkfs.meta.leases import LeaseStore
    from wrkfs.types import Attr, Dentry, FileMap

ROOM = 200_000
"""Names and attributes kept at most: about 100 MB."""
FOLDERS = 4096
"""Directories whose kind is remembered, so that their lease is asked for first."""
RETAKE = 1.0
"""Seconds after a recall, or a refusal, before a lease is asked for again."""
LONGEST = 10.0
"""Seconds that a kernel is told at most to rely on an answer."""
SHORTEST = 0.1
_ANSWER = 2
"""What the answer of an own change may add: a name, and one inode's attributes."""
_UNKNOWN = (Unavailable, Doubtful, StorageError)


async def _nobody(_directories: Sequence[Ino], _inos: set[Ino]) -> None:
    return


class LeaseKeeping(DelegatingMeta):
    """The state of a `LeasedMeta`.

    Critical sections: what is kept changes without an await in between. A lease is in `_kept` from
    the answer of `take_lease` until it is recalled; whoever is told of it meanwhile is told again
    (`on_drop`) before it is given back. While it is (`_leaving`) it is not taken, and who recalls
    it once more waits for that (`_again`): what was asked last must not end what came later.

    `_size` is never less than what is kept: it grows before something is added, and what goes is
    only taken off when everything is counted anew (`_grow`).
    """

    def __init__(self, inner: LeaseStore, *, room: int = ROOM) -> None:
        """`room`: names and attributes kept at most."""
        super().__init__(inner)
        self.on_drop: Callable[[Sequence[Ino], set[Ino]], Awaitable[None]] = _nobody
        """Awaited before leases of directories are given back: with them, the inodes whose
        attributes somebody was told to rely on (`attr_validity`)."""
        self._room = room
        self._size = self._reserved = 0
        self._kept: OrderedDict[Ino, Kept] = OrderedDict()
        self._homes: dict[Ino, Ino] = {}
        self._folders: OrderedDict[Ino, None] = OrderedDict()
        """Directories without a lease that were named in an answer lately."""
        self._tick = self._voids = 0
        self._changes = Changes()
        self._not_before: OrderedDict[Ino, float] = OrderedDict()
        self._doubts = 0
        self._taking: dict[Ino, asyncio.Future[None]] = {}
        self._listeners: list[set[Ino]] = []
        self._leaving: dict[Ino, asyncio.Task[None]] = {}
        self._again: set[Ino] = set()
        self._light = LightOpens(inner)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: set[asyncio.Task[None]] = set()
        inner.watch_leases(self._recalled, self._void, self._forget_all, lambda: self._light.all)

    # -- the life of the store --

    async def start(self) -> None:
        """See MetaStore."""
        await self._inner.start()
        self._light.start()

    async def close(self) -> None:
        """See MetaStore."""
        await self._light.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._inner.close()

    async def rejoin(self) -> None:
        """See MetaStore."""
        self._light.clear()
        self._void()
        await self._inner.rejoin()

    def watch(self, on_crash: Callable[[bool], None]) -> None:
        """See MetaStore."""

        def crashed(lost: bool) -> None:
            self._void()
            on_crash(lost)

        self._inner.watch(crashed)

    # -- what others may rely on --

    def holds(self, directory: Ino) -> bool:
        """Whether the session has a lease on a directory, so that recalls of it are heard."""
        return directory in self._kept

    def entry_validity(self, parent: Ino, name: bytes, ino: Ino | None) -> float:
        """Seconds for which a name may be taken to stand for an inode (None: for nothing)."""
        kept = self._usable(parent)
        if kept is None or self._changes.touches((parent, name)):
            return 0.0
        known = kept.names.get(name)
        if known is None and name not in kept.names and not kept.whole:
            return 0.0
        return self._left() if (known and known.ino) == ino else 0.0

    def attr_validity(self, attr: Attr) -> float:
        """Seconds for which these attributes may be taken for the inode's; notes who was told."""
        home = attr.ino if attr.is_dir else self._homes.get(attr.ino)
        kept = None if home is None else self._usable(home)
        if home is None or kept is None or self._changes.touches(attr.ino):
            return 0.0
        if (kept.own if attr.is_dir else kept.attrs.get(attr.ino)) != attr:
            return 0.0
        if attr.ino not in kept.told:
            self._grow(1)
            kept.told.add(attr.ino)
        return self._left() if self.holds(home) else 0.0

    def listing_validity(self, parent: Ino, entries: Sequence[Dentry]) -> list[tuple[float, float]]:
        """`entry_validity` and `attr_validity` of each entry, looked up at once."""
        kept = self._usable(parent)
        left = self._left()
        if kept is None or not left or self._changes.touches_names(parent):
            return [(0.0, self.attr_validity(entry.attr)) for entry in entries]
        told, names, attrs = kept.told, kept.names, kept.attrs
        self._grow(sum(entry.attr.ino not in told for entry in entries))
        found = []
        for entry in entries:
            attr, name = entry.attr, names.get(entry.name)
            named = left if name is not None and name.ino == attr.ino else 0.0
            if attrs.get(attr.ino) != attr or self._changes.touches(attr.ino):
                found.append((named, self.attr_validity(attr)))
            else:
                told.add(attr.ino)
                found.append((named, left))
        # Making room may have cost the directory its lease.
        return found if self.holds(parent) else [(0.0, 0.0)] * len(found)

    # -- keeping --

    def _left(self) -> float:
        left = min(self._inner.trusted_until - boottime(), LONGEST)
        return left if left > SHORTEST else 0.0

    def _usable(self, directory: Ino) -> Kept | None:
        kept = self._kept.get(directory)
        if kept is None or boottime() > self._inner.trusted_until:
            return None
        self._kept.move_to_end(directory)
        return kept

    def _mark(self) -> Mark | None:
        stamp = self._changes.mark
        return None if stamp is None else Mark(stamp, self._tick)

    def _current(self, directory: Ino, mark: Mark | None) -> Kept | None:
        """Where an answer may be kept whose question was asked at `mark`."""
        kept = self._kept.get(directory)
        if kept is None or mark is None or kept.since > mark.tick:
            return None
        return kept if self._changes.mark == mark.stamp else None

    def _attr(self, ino: Ino) -> Attr | None:
        if self._changes.touches(ino) or self._usable(self._homes.get(ino, ino)) is None:
            return None
        return self._known(ino)

    def _known(self, ino: Ino) -> Attr | None:
        """What is kept of an inode, whether it may be served now or not."""
        home = self._homes.get(ino)
        kept = self._kept.get(ino if home is None else home)
        if kept is None:
            return None
        return kept.own if home is None else kept.attrs.get(ino)

    def _keep(self, attr: Attr, mark: Mark | None) -> None:
        """Keeps settled attributes, where a lease covers them."""
        self._grow(1)
        self._put_settled(attr, mark)

    def _put_settled(self, attr: Attr, mark: Mark | None) -> None:
        """The same, after `_grow`."""
        if attr.is_dir:
            kept = self._current(attr.ino, mark)
            if kept is not None:
                kept.own = attr
            else:
                self._folders[attr.ino] = None
                if len(self._folders) > FOLDERS:
                    self._folders.popitem(last=False)
        elif attr.nlink == 1:
            kept = self._current(attr.parent, mark)
            if kept is not None:
                self._put_attr(kept, attr)

    def _put_attr(self, kept: Kept, attr: Attr) -> None:
        old = self._homes.get(attr.ino)
        if old is not None and old != attr.parent:
            self._lose_attr(attr.ino)
        known = kept.maps.get(attr.ino)
        if known is not None and known.attr.version != attr.version:
            kept.lose_map(attr.ino)
        kept.attrs[attr.ino] = attr
        self._homes[attr.ino] = attr.parent

    def _lose_attr(self, ino: Ino) -> None:
        home = self._homes.pop(ino, None)
        kept = None if home is None else self._kept.get(home)
        if kept is not None:
            kept.attrs.pop(ino, None)
            kept.lose_map(ino)

    def _lose_own(self, ino: Ino) -> None:
        """The attributes of an inode of any kind are not known any more."""
        self._lose_attr(ino)
        kept = self._kept.get(ino)
        if kept is not None:
            kept.own = None

    def _lose_below(self, parent: Ino) -> None:
        """A name in a directory changed, and what it stood for is not known."""
        self._changes.confuse()
        for kept in self._kept.values():
            if kept.own is not None and kept.own.parent == parent:
                kept.own = None
        above = self._kept.get(parent)
        for ino in list(above.attrs) if above is not None else ():
            self._lose_attr(ino)

    async def _uncover(self, *directories: Ino) -> None:
        """Something is about to leave these directories: nobody relies on attributes any more that
        its new place does not cover."""
        told: set[Ino] = set()
        for directory in directories:
            kept = self._kept.get(directory)
            if kept is not None:
                told |= kept.told
                kept.told = set()
        # Those of directories that have just been recalled may still be relied on.
        await self._dropped()
        await self.on_drop((), told)

    async def _uncover_inode(self, ino: Ino) -> None:
        """An inode is about to be covered by no lease."""
        homes = [directory for directory, kept in self._kept.items() if ino in kept.told]
        if homes or self._drops:
            await self._uncover(*homes)

    def _map(self, ino: Ino) -> FileMap | None:
        attr = self._attr(ino)
        home = self._homes.get(ino)
        kept = None if home is None or attr is None else self._kept.get(home)
        found = None if kept is None else kept.maps.get(ino)
        if found is None or attr is None or found.attr.version != attr.version:
            return None
        return found if found.attr is attr else replace(found, attr=attr)

    def _keep_map(self, found: FileMap, mark: Mark | None) -> None:
        """Maps say nothing about being settled: they are kept beside settled attributes only."""
        attr = found.attr
        if attr.nlink == 1 and self._current(attr.parent, mark) is not None:
            self._put_map(found)

    def _put_map(self, found: FileMap) -> None:
        """Keeps a map beside the attributes of the same version, unless it is long."""
        attr, heavy = found.attr, weight(found)
        if len(found.refs) > MAP_REFS or inline_bytes(found) > MAP_BYTES:
            return
        self._grow(heavy)
        kept = self._kept.get(attr.parent)
        known = None if kept is None else kept.attrs.get(attr.ino)
        if kept is None or known is None or known.version != attr.version:
            return
        kept.put_map(found)

    def _answered(self, change: Change, directory: Ino) -> Kept | None:
        """Where the answer of a change may be kept: a lease that was here before it was sent."""
        kept = self._kept.get(directory)
        return None if kept is None or kept.since > change.tick else kept

    def _made(self, change: Change, parent: Ino, name: bytes, attr: Attr) -> None:
        """A new inode stands under a name."""
        kept = self._answered(change, parent)
        if kept is None:
            return
        if change.clean((parent, name)):
            kept.put(name, attr.ino, attr.ino)  # a new entry's cookie is its inode's number
            if not attr.is_dir:
                self._put_attr(kept, attr)
        else:
            kept.forget(name)
        # The answer of a call that was repeated shows the inode as it is now.
        new = attr.ctime_ns == attr.atime_ns
        moved = attr.ctime_ns if new and change.clean(parent) else None
        kept.stamp_own(moved, int(attr.is_dir))

    def _changed(self, change: Change, attr: Attr) -> None:
        """An own change was answered with these attributes."""
        if attr.is_dir:
            kept = self._answered(change, attr.ino)
            if kept is not None:
                kept.own = attr if change.clean(attr.ino) else None
            return
        kept = self._answered(change, attr.parent) if attr.nlink == 1 else None
        if kept is None or not change.clean(attr.ino):
            self._lose_attr(attr.ino)
        else:
            self._put_attr(kept, attr)

    @asynccontextmanager
    async def _changing(self, *keys: Key) -> AsyncIterator[Change]:
        """An own change: nothing that it touches is answered from what is kept meanwhile."""
        self._grow(_ANSWER)
        self._reserved += _ANSWER
        change = self._changes.begin(self._tick, *keys)
        try:
            yield change
        except BaseException as error:
            if not isinstance(error, WrkfsError) or isinstance(error, _UNKNOWN):
                await self._doubt()
            raise
        finally:
            self._changes.end(change)
            self._reserved -= _ANSWER

    async def _doubt(self) -> None:
        """Nobody knows whether a change was made, or still will be, when a late copy of it comes.

        That copy asks for no lease of this session, and may meet other inodes than the ones that
        the change was meant for. So everything is forgotten, and no lease taken until the copy
        cannot come any more. Returns when nobody relies on anything.
        """
        self._doubts += 1
        self._voids += 1
        if self._doubts == 1:
            self._spawn(self._end_doubts())
        self._drop_all()
        await self._dropped()

    async def _end_doubts(self) -> None:
        """Makes the database refuse what is still on its way: see `wrkfs.give_up`.

        A time to wait instead would have to be guessed: the kernel sends what it was given for
        minutes, whether its connection was ended or not.
        """
        while self._doubts:
            seen = self._doubts
            try:
                await self._inner.give_up({})
            except WrkfsError:
                await asyncio.sleep(RETAKE)
                continue
            if seen == self._doubts:
                self._doubts = 0

    # -- leases --

    async def _take(self, directory: Ino) -> None:
        """Asks for a lease, unless there is one or it was refused just now."""
        if directory in self._kept or directory in self._leaving:
            return
        if self._doubts or not self._inner.can_lease:
            return
        until = self._not_before.get(directory)
        if until is not None:
            if time.monotonic() < until:
                return
            del self._not_before[directory]
        pending = self._taking.get(directory)
        if pending is not None:
            await asyncio.shield(pending)
            return
        pending = self._taking[directory] = asyncio.get_running_loop().create_future()
        try:
            voids = self._voids
            with self._listening() as heard:
                taken = await self._inner.take_lease(directory)
            if not taken:
                self._wait_with(directory)
            elif voids == self._voids and directory not in heard:
                self._adopt(directory)
            else:
                self._let_go([directory])
        finally:
            del self._taking[directory]
            pending.set_result(None)

    @contextmanager
    def _listening(self) -> Iterator[set[Ino]]:
        """The directories that are recalled in the body: an answer may come after its recall."""
        heard: set[Ino] = set()
        self._listeners.append(heard)
        try:
            yield heard
        finally:
            self._listeners = [one for one in self._listeners if one is not heard]

    def _adopt(self, directory: Ino) -> Kept:
        self._grow(1)
        kept = self._kept[directory] = Kept()
        self._tick += 1
        kept.since = self._tick
        return kept

    def _wait_with(self, directory: Ino) -> None:
        now = time.monotonic()
        self._not_before[directory] = now + RETAKE
        self._not_before.move_to_end(directory)
        while next(iter(self._not_before.values())) <= now:
            self._not_before.popitem(last=False)

    def _grow(self, count: int) -> None:
        """So much is about to be added; makes room, beginning with what was not used for long."""
        self._size += count
        if self._size <= self._room:
            return
        self._size = count + self._reserved + sum(map(len, self._kept.values()))
        told: set[Ino] = set()
        out = []
        while self._size > self._room * 3 // 4 and self._kept:
            directory = next(iter(self._kept))
            self._size -= len(self._kept[directory])
            told |= self._pop(directory)
            out.append(directory)
        if out:
            self._leave(out, told)

    def _recalled(self, directories: Sequence[Ino]) -> None:
        """Somebody waits for these leases; of negative numbers: see `_touched`."""
        touched = {Ino(-ino) for ino in directories if ino < 0}
        if touched:
            self._touched(touched)
            directories = [ino for ino in directories if ino > 0]
        for heard in self._listeners:
            heard.update(directories)
        for directory in directories:
            self._wait_with(directory)
        self._let_go(directories)

    def _touched(self, inos: set[Ino]) -> None:
        """Somebody has moved access times: what was read before is not served any more."""
        self._changes.disturb()
        self._changes.confuse()
        for ino in inos:
            self._lose_own(ino)
        self._spawn(self.on_drop((), inos))

    def _let_go(self, directories: Iterable[Ino]) -> None:
        """Forgets directories and gives their leases back; once more if that is under way."""
        told: set[Ino] = set()
        out = []
        for directory in directories:
            if directory in self._leaving:
                self._again.add(directory)
                continue
            told |= self._pop(directory)
            out.append(directory)
        if out:
            self._leave(out, told)

    def _pop(self, directory: Ino) -> set[Ino]:
        """Forgets a directory: the inodes whose attributes somebody was told of."""
        kept = self._kept.pop(directory, None)
        if kept is None:
            return set()
        for ino in kept.attrs:
            self._homes.pop(ino, None)
        return kept.told

    def _leave(self, directories: list[Ino], told: set[Ino]) -> None:
        drop = self._spawn(self.on_drop(directories, told))
        self._drops.add(drop)
        drop.add_done_callback(self._drops.discard)
        task = self._spawn(self._surrender(directories, drop))
        self._leaving.update(dict.fromkeys(directories, task))

    async def _dropped(self) -> None:
        """Returns when nobody relies on what was forgotten."""
        if self._drops:
            await asyncio.wait(set(self._drops))

    async def _surrender(self, directories: list[Ino], drop: Awaitable[None]) -> None:
        """Gives leases back when nobody relies on them any more.

        No file is open then that neither a lease covers nor the database knows of.
        """
        try:
            bare = [ino for ino in self._light.all if ino not in self._homes]
            await asyncio.gather(self._light.sustain(bare), drop)
            await self._inner.give_back(directories)
        finally:
            for directory in directories:
                del self._leaving[directory]
            again = self._again.intersection(directories)
            self._again -= again
        if again:
            self._let_go(again)

    def _ended(self, directory: Ino) -> set[Ino]:
        """A directory was removed here, and its lease with it: as `_pop`."""
        for heard in self._listeners:
            heard.add(directory)  # one that is being taken may have been there already
        return self._pop(directory)

    def _forget_unplaced(self) -> None:
        """A directory was removed here, and nobody knows which: one of those whose parent is not
        known. Its lease went with it."""
        unplaced = [directory for directory, kept in self._kept.items() if kept.own is None]
        for heard in self._listeners:
            heard.update(self._taking)
        self._let_go(unplaced)

    def _drop_all(self) -> None:
        """Forgets everything, and gives it back."""
        self._let_go(list(self._kept))
        self._homes.clear()
        self._size = self._reserved

    def _void(self) -> None:
        """All leases are gone, or recalls may have been missed."""
        self._voids += 1
        # The database may know them still, and nobody listens for who waits for them.
        self._drop_all()
        self._spawn(self._settle())

    async def _forget_all(self) -> None:
        """Returns when nothing is kept, and nobody relies on what was."""
        self._void()
        await self._dropped()

    async def _settle(self) -> None:
        """Tells of all open files: no lease protects them any more."""
        await self._light.sustain(self._light.all)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except (WrkfsError, asyncio.CancelledError):
                # Who waits for a lease that could not be given back waits until it expires.
                return

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
