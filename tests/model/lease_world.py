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
from typing import TYPE_CHECKING

from tests.model.lease_mount import CHANGES, CLOCK, HTTP, ME, D, F, Mount, Op
from tests.model.lease_session import at_once
from tests.model.lease_store import Database
from tests.model.schedules import Event, StepLoop, Violation
from wrkfs.meta.interface.lease_times import TRUST
from wrkfs.types import ROOT_INO, Attr

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tests.model.lease_store import State
    from tests.model.schedules import Key


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
        self.loop = self._make_loop()
        self._gates: dict[Key, tuple[Event, asyncio.Future[None]]] = {}
        self._broken: list[str] = []
        self._running = 0
        self._fresh = 1000
        self._role: frozenset[str] = frozenset()
        CLOCK.database = None
        self.database = self._make_database(look_first=look_first)
        CLOCK.database = self.database
        self.mounts: dict[int, Mount] = {}
        self.loop.drain(self._set_up)
        for client, op in warm:
            self._spawn(("warm",), client, [op])
            self._run_out()
        self.database.impatience = impatience
        for number, (client, ops) in enumerate(programs):
            self._spawn((number,), client, ops)

    def _make_loop(self) -> StepLoop:
        return StepLoop()

    def _make_database(self, *, look_first: bool) -> Database:
        return Database(look_first=look_first)

    def _make_mounts(self) -> None:
        for number in (1, 2, HTTP):
            self.mounts[number] = Mount(self, leases=number != HTTP)

    def _set_up(self) -> None:
        self._make_mounts()
        maker = self.mounts[HTTP].session
        for kind, args in (
            ("mkdir", (ROOT_INO, b"d", 0o755, ME)),
            ("create", (D, b"f", 0o644, ME, True)),
            ("mkdir", (ROOT_INO, b"e", 0o755, ME)),
        ):
            at_once(maker.meaning(kind, args))
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
                roles = frozenset({"end"}) if op[0] == "cut" else frozenset[str]()
                await self.gate(key, None, roles, alone=True)
                self._happen(op)
                continue
            mount = self.mounts[client]
            await self.gate(key, mount.number, frozenset({"begin"}))
            if op[0] == "beat":
                await mount.session.beat()
                continue
            await self._call(mount, op)
        self._running -= 1

    async def _call(self, mount: Mount, op: Op) -> object:
        """Makes a call, and checks its answer."""
        began, own = self._moment(mount), list(mount.changing)
        answer = await mount.do(op)
        if op[0] in CHANGES and not self._role & {"end", "begin"}:
            self._broken.append(f"{op} ends in an event that is not marked so")
        right = not self._answers(op) or self._is_explained(op, answer, began, own)
        if not right and not self._is_over(mount, answer):
            self._broken.append(f"client {mount.number}: {op} answered {answer}")
        return answer

    def _moment(self, _mount: Mount) -> int:
        """The state at the beginning of a call."""
        return len(self.database.history) - 1

    def _is_over(self, _mount: Mount, _answer: object) -> bool:
        """Whether an answer says that the session is over."""
        return False

    def _happen(self, op: Op) -> None:
        """What nobody does: time passes, a session loses its heart, or answers."""
        verb, *args = op
        database = self.database
        if verb == "cut":
            database.cut(self.mounts[args[0]].session)
            return
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
            touched = [change[start : start + 2] for change in changes for start in (1, 2, 3)]
            return op[1:] in touched
        if op[0] == "list" or any(change[:2] == ("chmod", op[1]) for change in changes):
            return bool(op[0] == "stat")
        if not isinstance(answer, Attr) or ("write", op[1]) in changes:
            return True
        if any(change[0] in ("unlink", "rename") for change in changes):
            return op[1] not in history[-1].attrs
        same = (answer.mode, answer.size)
        found = (state.attrs.get(op[1]) for state in history[began:])
        return any(attr is not None and (attr.mode, attr.size) == same for attr in found)

    @staticmethod
    def _explains(state: State, op: Op, answer: object) -> bool:
        """Whether a question is answered so in a state."""
        if op[0] == "look":
            assert isinstance(answer, tuple)
            ino, attr = answer
            named = bool(state.names.get((op[1], op[2])) == ino)
            return named and bool(attr is None or state.attrs[ino] == attr)
        if op[0] == "stat":
            found: object = state.attrs.get(op[1], ("errno", 2))
            return found == answer
        if op[1] not in state.attrs:
            return answer == ("errno", 2)
        listed = {name: state.attrs[ino] for (at, name), ino in state.names.items() if at == op[1]}
        return listed == answer

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
        """Return the events that can happen now: answers first, beginnings last."""
        return [*self.database.events(), *(event for event, _ in self._gates.values())]

    def step(self, event: Event) -> None:
        """Run one event until no task can go on, and check the invariants."""
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
            for ino in mount.leased.table.directories:
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
        """Check that every call has ended and that every lease is known to its holder."""
        if self._running or self.database.requests:
            left = [(one.session.number, one.kind, one.stage) for one in self.database.requests]
            raise Violation(f"{self._running} programs do not end; under way: {left}")
        if self.loop.complaints:
            raise Violation(str(self.loop.complaints))
        for ino, number in self.database.leases:
            leased = next(m.leased for m in self.mounts.values() if m.number == number)
            known = leased is not None and leased.table.holds(ino)
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
        """Cancel all tasks."""
        self.loop.cancel_all()
