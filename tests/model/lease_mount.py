"""A client of a `LeaseWorld` with the kernel above it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tests.model.lease_session import LeaseSession
from wrkfs.errors import NotFound, WrkfsError
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.types import Attr, Caller, Commit, Extent, Ino, SetAttr, SliceId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.lease_store import Database
    from tests.model.lease_world import LeaseWorld
    from wrkfs.meta.delegations.store import DelegatedMeta
    from wrkfs.meta.interface.leases import LeaseStore

Op: TypeAlias = "tuple[Any, ...]"

ME = Caller(0, 0)
D, F, E = Ino(2), Ino(3), Ino(4)
"""The tree: directory `d` with file `f` in it, and empty directory `e`."""
HTTP = -1
"""The client without leases."""
CHANGES = ("create", "mkdir", "link", "unlink", "rmdir", "rename", "chmod", "write")


class Clock:
    """Stands for module `time`: nothing passes by itself; each change has a stamp of its own."""

    def __init__(self) -> None:
        self.database: Database | None = None

    def monotonic(self) -> float:
        """Seconds, also those of `boottime`."""
        return 0.0 if self.database is None else self.database.now

    def time_ns(self) -> int:
        """Another one for each change, and one for all that it changes, in whole microseconds."""
        return 0 if self.database is None else 1000 * len(self.database.history)


CLOCK = Clock()


class Mount:
    """A client and the kernel above it; without leases it is the HTTP client."""

    def __init__(self, world: LeaseWorld, *, leases: bool) -> None:
        self.world = world
        self.session = self._make_session(listens=leases)
        self.number = self.session.number
        self.leased: LeasedMeta | None = None
        self.meta: LeasedMeta | LeaseSession | DelegatedMeta = self.session
        if leases:
            self.leased = self.meta = LeasedMeta(
                cast("LeaseStore", self.session), room=world.room or 200_000
            )
            self.leased.table.on_drop = self.drop
        self.names: dict[tuple[Ino, bytes], tuple[Ino | None, float]] = {}
        self.attrs: dict[Ino, tuple[Attr, float]] = {}
        self.open_files: Counter[Ino] = Counter()
        self.changing: list[tuple[int, Op]] = []
        """Own changes under way, and in which state they began."""
        self._drops = 0

    def _make_session(self, *, listens: bool) -> LeaseSession:
        return LeaseSession(self.world.database, listens=listens)

    async def drop(self, directories: Sequence[Ino], inos: set[Ino]) -> None:
        """The kernel takes its time to forget."""
        self._drops += 1
        roles = frozenset({"drop", "end"})
        await self.world.gate(("drop", self.number, self._drops), self.number, roles)
        if self.world.forgetful:
            return
        self.names.clear()
        for ino in inos:
            self.attrs.pop(ino, None)

    def _told_name(self, parent: Ino, name: bytes, ino: Ino | None) -> None:
        valid = self.leased.table.entry_validity(parent, name, ino) if self.leased else 0.0
        self.names.pop((parent, name), None)
        if valid:
            self.names[parent, name] = ino, CLOCK.monotonic() + valid

    def _told_attr(self, attr: Attr) -> None:
        valid = self.leased.table.attr_validity(attr) if self.leased else 0.0
        self.attrs.pop(attr.ino, None)
        if valid:
            self.attrs[attr.ino] = attr, CLOCK.monotonic() + valid

    def _changed(self, *inos: Ino) -> None:
        for ino in inos:
            self.attrs.pop(ino, None)

    async def do(self, op: Op) -> object:
        """One call of a program; a WrkfsError is an answer: its errno."""
        verb, *args = op
        began = len(self.world.database.history) - 1
        if verb in CHANGES:
            self.changing.append((began, op))
        try:
            answer: object = await getattr(self, verb)(*args)
            return answer
        except WrkfsError as error:
            return ("errno", error.errno)
        finally:
            if verb in CHANGES:
                self.changing.remove((began, op))

    # -- calls --

    async def look(self, parent: Ino, name: bytes) -> tuple[Ino | None, Attr | None]:
        """LOOKUP, or what the kernel remembers of the name."""
        known = self.names.get((parent, name))
        if known is not None and known[1] > CLOCK.monotonic():
            return known[0], None
        try:
            attr = await self.meta.lookup(parent, name)
        except NotFound:
            self._told_name(parent, name, None)
            return None, None
        self._told_attr(attr)
        self._told_name(parent, name, attr.ino)
        return attr.ino, attr

    async def stat(self, ino: Ino) -> Attr:
        """GETATTR, or what the kernel remembers."""
        known = self.attrs.get(ino)
        if known is not None and known[1] > CLOCK.monotonic():
            return known[0]
        attr = await self.meta.getattr(ino)
        self._told_attr(attr)
        return attr

    async def list(self, ino: Ino) -> dict[bytes, Attr]:
        """READDIRPLUS."""
        entries = await self.meta.readdir(ino, 0, 100)
        for entry in entries:
            self._told_attr(entry.attr)
            self._told_name(ino, entry.name, entry.attr.ino)
        return {entry.name: entry.attr for entry in entries}

    async def create(self, parent: Ino, name: bytes) -> Ino:
        """CREATE, and close."""
        found, _ = await self.meta.create(parent, name, 0o600, ME, exclusive=False)
        self._changed(parent)
        self._told_attr(found.attr)
        self._told_name(parent, name, found.attr.ino)
        return found.attr.ino

    async def mkdir(self, parent: Ino, name: bytes) -> Ino:
        """MKDIR."""
        attr = await self.meta.mkdir(parent, name, 0o700, ME)
        self._changed(parent)
        self._told_attr(attr)
        self._told_name(parent, name, attr.ino)
        return attr.ino

    async def link(self, ino: Ino, parent: Ino, name: bytes) -> None:
        """LINK."""
        attr = await self.meta.link(ino, parent, name)
        self._changed(parent)
        self._told_attr(attr)
        self._told_name(parent, name, ino)

    async def unlink(self, parent: Ino, name: bytes) -> None:
        """UNLINK."""
        ino = self._ino(parent, name)
        await self.meta.unlink(parent, name)
        self._removed(parent, name, ino)

    async def rmdir(self, parent: Ino, name: bytes) -> None:
        """RMDIR."""
        ino = self._ino(parent, name)
        await self.meta.rmdir(parent, name)
        self._removed(parent, name, ino)

    def _ino(self, parent: Ino, name: bytes) -> Ino | None:
        """What the kernel has looked up before it takes a name away."""
        return self.world.database.history[-1].names.get((parent, name))

    def _removed(self, parent: Ino, name: bytes, *inos: Ino | None) -> None:
        known = self.names.pop((parent, name), None)
        inos = (*inos, None if known is None else known[0])
        self._changed(parent, *(ino for ino in inos if ino is not None))

    async def rename(self, parent: Ino, name: bytes, goal: Ino, new: bytes) -> None:
        """RENAME: the kernel takes what it knows of the name along."""
        moved, replaced = self._ino(parent, name), self._ino(goal, new)
        await self.meta.rename(parent, name, goal, new)
        known = self.names.get((parent, name))
        self._removed(parent, name, moved)
        self._removed(goal, new, replaced)
        if known is not None and known[0]:
            self.names[goal, new] = known
        leased = self.leased
        if leased and not (leased.table.holds(parent) and leased.table.holds(goal)):
            self.names.clear()

    async def chmod(self, ino: Ino, mode: int) -> None:
        """SETATTR."""
        self._told_attr(await self.meta.setattr(ino, SetAttr(mode=mode)))

    async def write(self, ino: Ino) -> None:
        """A commit of one more byte; the kernel does not know the size then."""
        slice_id = SliceId(self.world.fresh())
        await self.meta.commit(Commit(ino, (Extent(0, slice_id, 1, b"", b"x"),), append=True))
        self._changed(ino)

    async def open(self, ino: Ino) -> None:
        """OPEN."""
        await self.meta.open(ino)
        self.open_files[ino] += 1

    async def close(self, ino: Ino) -> None:
        """RELEASE, if it was opened."""
        if self.open_files[ino]:
            self.open_files[ino] -= 1
            await self.meta.release(ino)
