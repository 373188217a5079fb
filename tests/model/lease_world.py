"""Mounts, the kernels above them, and an HTTP client on one volume, for `schedules.explore`.

The mounts run the real `LeasedMeta`; each has a kernel that relies on what it was told
(`entry_validity`, `attr_validity`) until `on_drop` says otherwise. What is checked:

* Every answer is what was committed at a moment between the call's beginning and its end. The
  database's commits are so the one order that explains the whole history. (A kernel may serve what
  it relies on until its own change is answered.)
* Nothing that a kernel relies on is untrue, at no moment, unless its own change is under way.
* What is kept is covered by a row of the database, unless it may not be served any more.
* An open file is there until it is closed.
* Everything ends; and whoever has a lease knows of it, so that it can be recalled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tests.model.lease_session import TRUST, LeaseSession, at_once
from tests.model.lease_store import Database
from tests.model.schedules import Event, StepLoop, Violation
from wrkfs.errors import WrkfsError
from wrkfs.meta.leased import LeasedMeta
from wrkfs.types import ROOT_INO, Attr, Caller, Commit, Extent, Ino, SetAttr, SliceId

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tests.model.lease_store import State
    from tests.model.schedules import Key
    from wrkfs.meta.leases import LeaseStore

Op: TypeAlias = "tuple[Any, ...]"

ME = Caller(0, 0)
D, F, E = Ino(2), Ino(3), Ino(4)
"""The tree: directory `d` with file `f` in it, and empty directory `e`."""
HTTP = -1
"""The client without leases."""
CHANGES = ("create", "mkdir", "link", "unlink", "rmdir", "rename", "chmod", "write")


class Clock:
    """Stands for module `time`: nothing passes by itself, and every stamp is a new one."""

    def __init__(self) -> None:
        self.database: Database | None = None
        self.stamp = 0

    def monotonic(self) -> float:
        """Seconds, also those of `boottime`."""
        return 0.0 if self.database is None else self.database.now

    def time_ns(self) -> int:
        """Another one each time."""
        self.stamp += 1
        return self.stamp


CLOCK = Clock()


class Mount:
    """A client and the kernel above it; without leases it is the HTTP client."""

    def __init__(self, world: LeaseWorld, *, leases: bool) -> None:
        self.world = world
        self.session = LeaseSession(world.database, listens=leases)
        self.number = self.session.number
        self.leased: LeasedMeta | None = None
        self.meta: LeasedMeta | LeaseSession = self.session
        if leases:
            self.leased = self.meta = LeasedMeta(
                cast("LeaseStore", self.session), room=world.room or 200_000
            )
            self.leased.on_drop = self.drop
        self.names: dict[tuple[Ino, bytes], tuple[Ino | None, float]] = {}
        self.attrs: dict[Ino, tuple[Attr, float]] = {}
        self.open_files: Counter[Ino] = Counter()
        self.changing: list[tuple[int, Op]] = []
        """Own changes under way, and in which state they began."""
        self._drops = 0

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
        valid = self.leased.entry_validity(parent, name, ino) if self.leased else 0.0
        self.names.pop((parent, name), None)
        if valid:
            self.names[parent, name] = ino, CLOCK.monotonic() + valid

    def _told_attr(self, attr: Attr) -> None:
        valid = self.leased.attr_validity(attr) if self.leased else 0.0
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
        except WrkfsError:
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
        if leased is not None and not (leased.holds(parent) and leased.holds(goal)):
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


class LeaseWorld:
    """Mounts 1 and 2 and the HTTP client, and programs on them."""

    def __init__(
        self,
        programs: Sequence[tuple[int, Sequence[Op]]],
        *,
        warm: Sequence[tuple[int, Op]] = (),
        voids: bool = False,
        impatience: int = 0,
        room: int = 0,
        look_first: bool = False,
        forgetful: bool = False,
    ) -> None:
        """`programs`: on which client (1, 2, HTTP, or 0: the world itself), and the calls one after
        the other. `warm` is done before, in one order. `voids`: leases may be void in between.
        `look_first`, `forgetful`: faults of the database and of the kernel."""
        self.room, self.forgetful, self._voids = room, forgetful, voids
        self.loop = StepLoop()
        self._gates: dict[Key, tuple[Event, asyncio.Future[None]]] = {}
        self._broken: list[str] = []
        self._running = 0
        self._fresh = 1000
        self._role: frozenset[str] = frozenset()
        CLOCK.database, CLOCK.stamp = None, 0
        self.database = Database(look_first=look_first)
        CLOCK.database = self.database
        self.mounts: dict[int, Mount] = {}
        self.loop.drain(self._set_up)
        for client, op in warm:
            self._spawn(("warm",), client, [op])
            self._run_out()
        self.database.impatience = impatience
        for number, (client, ops) in enumerate(programs):
            self._spawn((number,), client, ops)

    def _set_up(self) -> None:
        for number in (1, 2, HTTP):
            self.mounts[number] = Mount(self, leases=number != HTTP)
        maker = self.mounts[HTTP].session
        for kind, args in (
            ("mkdir", (ROOT_INO, b"d", 0o755, ME)),
            ("create", (D, b"f", 0o644, ME, True)),
            ("mkdir", (ROOT_INO, b"e", 0o755, ME)),
        ):
            at_once(maker._meaning(kind, args))
        self.database.volume.release(F, maker.session)
        self.database.homes[F] = D
        self.database.note()

    def fresh(self) -> int:
        """A number."""
        self._fresh += 1
        return self._fresh

    # -- programs --

    def _spawn(self, name: Key, client: int, ops: Sequence[Op]) -> None:
        self._running += 1
        self.loop.drain(lambda: self._start(self._program(name, client, ops)))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self.loop.create_task(work)

    async def _program(self, name: Key, client: int, ops: Sequence[Op]) -> None:
        for number, op in enumerate(ops):
            key = ("start", *name, number)
            if client == 0:
                await self.gate(key, None, frozenset(), alone=True)
                self._happen(op)
                continue
            mount = self.mounts[client]
            await self.gate(key, mount.number, frozenset({"begin"}))
            began, own = len(self.database.history) - 1, list(mount.changing)
            if op[0] == "beat":
                await mount.session.beat()
                continue
            answer = await mount.do(op)
            if op[0] in CHANGES and not self._role & {"end", "begin"}:
                self._broken.append(f"{op} ends in an event that is not marked so")
            if self._answers(op) and not self._is_explained(op, answer, began, own):
                self._broken.append(f"client {client}: {op} answered {answer}")
        self._running -= 1

    def _happen(self, op: Op) -> None:
        """What nobody does: time passes, a session loses its heart."""
        verb, *args = op
        database = self.database
        frozen = None
        if verb == "pause":
            database.now += 1.5
            database.recalls.clear()
        else:
            frozen = self.mounts[args[0]].session
            database.now += 7.0
            database.recalls.clear()
        for session in database.sessions.values():
            if session is not frozen:
                session.expires = max(session.expires, database.now + 1.0)
                session.trusted_until = max(session.trusted_until, database.now)
                session.trusted_until = database.now + TRUST

    @staticmethod
    def _answers(op: Op) -> bool:
        return op[0] in ("look", "stat", "list")

    def _is_explained(self, op: Op, answer: object, began: int, own: list[tuple[int, Op]]) -> bool:
        """Whether the answer was true during the call; a kernel serves what it relies on until its
        `own` changes are answered: as if they had not been made."""
        history = self.database.history
        if any(self._explains(state, op, answer) for state in history[began:]):
            return True
        before = history[min([began, *(since for since, _ in own)]) :]
        if not any(self._explains(state, op, answer) for state in before):
            return False
        changes = [change for _, change in own]
        if op[0] == "look":
            return any(op[1:] in (change[1:3], change[3:5], change[2:4]) for change in changes)
        if op[0] == "list" or any(change[:2] == ("chmod", op[1]) for change in changes):
            return bool(op[0] == "stat")
        if not isinstance(answer, Attr) or ("write", op[1]) in changes:
            return True
        same = (answer.mode, answer.size)
        found = (state.attrs.get(op[1]) for state in history[began:])
        return any(attr is not None and (attr.mode, attr.size) == same for attr in found)

    @staticmethod
    def _explains(state: State, op: Op, answer: object) -> bool:
        """Whether a question is answered so in a state."""
        if op[0] == "look":
            assert isinstance(answer, tuple)
            ino, attr = answer
            named: bool = state.names.get((op[1], op[2])) == ino
            return named and (attr is None or state.attrs[ino] == attr)
        if op[0] == "stat":
            found: object = state.attrs.get(op[1], ("errno", 2))
            return bool(found == answer)
        if op[1] not in state.attrs:
            return bool(answer == ("errno", 2))
        listed = {name: state.attrs[ino] for (at, name), ino in state.names.items() if at == op[1]}
        return bool(listed == answer)

    # -- what is explored --

    async def gate(
        self, key: Key, client: int | None, roles: frozenset[str], *, alone: bool = False
    ) -> None:
        """Waits until it is chosen."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def release() -> None:
            del self._gates[key]
            if not future.done():
                future.set_result(None)

        self._gates[key] = Event(key, release, client, roles=roles, alone=alone), future
        await future

    def enabled(self) -> list[Event]:
        """See World: answers first, beginnings last."""
        return [*self.database.events(), *(event for event, _ in self._gates.values())]

    def step(self, event: Event) -> None:
        """See World."""
        self._role = event.roles
        self.loop.drain(event.run)
        self._check()

    def _run_out(self) -> None:
        while found := self.enabled():
            self.step(found[0])

    def _check(self) -> None:
        now = self.database.history[-1]
        clock = CLOCK.monotonic()
        for mount in self.mounts.values():
            for ino, count in mount.open_files.items():
                if count and ino not in self.database.volume.nodes and not self._voids:
                    self._broken.append(f"inode {ino} is gone while it is open")
            if mount.leased is None:
                continue
            if not mount.changing:
                self._check_kernel(mount, now, clock)
            if clock > mount.session.trusted_until:
                continue
            for ino in mount.leased._kept:
                covered = (ino, mount.number) in self.database.leases
                if not covered and ino in self.database.volume.nodes:
                    self._broken.append(f"client {mount.number} keeps {ino} without a lease")
        if self._broken:
            raise Violation("; ".join(self._broken))

    def _check_kernel(self, mount: Mount, now: State, clock: float) -> None:
        for name, (ino, until) in mount.names.items():
            if until > clock and now.names.get(name) != ino:
                self._broken.append(f"kernel {mount.number} relies on {name} being {ino}")
        for ino, (attr, until) in mount.attrs.items():
            if until > clock and now.attrs.get(ino) != attr:
                self._broken.append(f"kernel {mount.number} relies on {attr}")

    def finish(self) -> None:
        """See World."""
        if self._running or self.database.requests:
            left = [(one.session.number, one.kind, one.stage) for one in self.database.requests]
            raise Violation(f"{self._running} programs do not end; under way: {left}")
        if self.loop.complaints:
            raise Violation(str(self.loop.complaints))
        for ino, number in self.database.leases:
            leased = next(m.leased for m in self.mounts.values() if m.number == number)
            known = leased is not None and leased.holds(ino)
            if not known and not self._voids and ino in self.database.volume.nodes:
                raise Violation(f"client {number} does not know of its lease on {ino}")
        if self._voids:
            self._probe()

    def _probe(self) -> None:
        """Everything can be changed."""
        for ino in sorted({ino for ino, _ in self.database.leases}):
            if ino in self.database.volume.nodes:
                self._spawn(("probe", ino), HTTP, [("chmod", ino, 0o711)])
                self._run_out()
        if self._running:
            raise Violation("leases cannot be recalled")

    def end(self) -> None:
        """See World."""
        self.loop.cancel_all()
