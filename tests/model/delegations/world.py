"""Two mounts with delegations, a plain client, and mounts that follow, for `schedules.explore`.

The mounts run the real `DelegatedMeta`. What is checked, besides what `lease_world` checks:

* The answered state (the rows, and what holders have answered) explains every answer. A change
  that was answered leaves it only if its session is fenced.
* A batch and a replay change nothing in it: nothing is applied twice, or in another order.
* A mount decides only about directories whose delegation it has, or that only it knows.
* After fsync, everything that was answered before is in the rows, and no crash undoes it.
* Every call ends, and in the end every directory can be changed.
"""

from __future__ import annotations

from errno import EEXIST, EIO, ENOENT
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tests.model.delegations.mount import DISKS, MOUNT, AlarmLoop, DelegatingMount, PlainClient
from tests.model.delegations.store import DelegationDatabase
from tests.model.lease_mount import CLOCK, HTTP, Op
from tests.model.lease_world import LeaseWorld
from tests.model.schedules import Event, Violation
from wrkfs.meta.interface.lease_times import TRUST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.model.lease_mount import Mount
    from tests.model.lease_store import State
    from tests.model.schedules import Key

HOSTS = {1: "/a", 2: "/b", 3: "/a", 4: "/a"}
"""Clients 3 and 4 are mounts that start later, on the host of client 1."""
REMINDERS = 2
"""How often a call that nothing else can help tries again, before time passes."""
PATIENCE = 3
"""How often time passes for calls that nothing else can help."""


class DelegationWorld(LeaseWorld):
    """Clients 1 and 2 with delegations, the plain client, and programs on them."""

    database: DelegationDatabase

    def __init__(
        self,
        programs: Sequence[tuple[int, Sequence[Op]]],
        *,
        warm: Sequence[tuple[int, Op]] = (),
        faults: frozenset[str] = frozenset(),
    ) -> None:
        """`programs` and `warm` as in LeaseWorld. `faults` of the database."""
        verbs = {op[0] for client, ops in programs for op in ops if client == 0}
        self._faults, self._crashes = faults, "crash" in verbs
        self._patience = PATIENCE
        self._reminded: dict[Key, int] = {}
        self._unfinished: dict[int, int] = {}
        self._surveying: set[int] = set()
        DISKS.clear()
        super().__init__(programs, warm=warm)

    def _make_loop(self) -> AlarmLoop:
        return AlarmLoop()

    def _make_database(self, *, look_first: bool) -> DelegationDatabase:
        return DelegationDatabase(faults=self._faults, crashes=self._crashes, look_first=look_first)

    def _make_mounts(self) -> None:
        for number in (1, 2):
            mount = self.mounts[number] = DelegatingMount(self, HOSTS[number])
            self._start(mount.start())
        self.mounts[HTTP] = PlainClient(self)

    def _set_up(self) -> None:
        super()._set_up()
        self.database.save()

    # -- programs --

    def _spawn(self, name: Key, client: int, ops: Sequence[Op]) -> None:
        self._unfinished[client] = self._unfinished.get(client, 0) + 1
        super()._spawn(name, client, ops)

    async def _program(self, name: Key, client: int, ops: Sequence[Op]) -> None:
        if client > 2:
            await self.gate(("mount", client), None, frozenset({"begin"}), alone=True)
            mount = self.mounts[client] = DelegatingMount(self, HOSTS[client])
            mount.session.neighbours = lambda: self._dead_on(mount)
            await mount.start()
        elif client in (1, 2):
            MOUNT.set(cast("DelegatingMount", self.mounts[client]))
        await super()._program(name, client, ops)
        self._unfinished[client] -= 1

    async def _call(self, mount: Mount, op: Op) -> object:
        """Makes a call; one in a directory (`create_in`, `list_in`) first looks up its name."""
        if not op[0].endswith("_in"):
            began = self._moment(mount)
            answer = await super()._call(mount, op)
            states = self.database.history[began:]
            if not any(self._allows(state, op, answer) for state in states):
                self._broken.append(f"client {mount.number}: {op} answered {answer}")
            return answer
        found = await super()._call(mount, ("look", *op[1:3]))
        ino = found[0] if isinstance(found, tuple) else None
        if ino is None:
            return None
        return await super()._call(mount, (op[0].removesuffix("_in"), ino, *op[3:]))

    @staticmethod
    def _allows(state: State, op: Op, answer: object) -> bool:
        """Whether a change may fail so in a state."""
        if op[0] not in ("unlink", "rmdir", "rename", "mkdir"):
            return True
        is_there = op[1:3] in state.names
        if answer == ("errno", ENOENT):
            return not is_there or (op[0] == "rename" and op[3] not in state.attrs)
        return is_there if answer == ("errno", EEXIST) else True

    def _dead_on(self, mount: DelegatingMount) -> list[Any]:
        return [
            other.session
            for other in self.delegating()
            if other.killed
            and other.host == mount.host
            and other.number not in self.database.fenced
        ]

    def delegating(self) -> list[DelegatingMount]:
        """Return all mounts with delegations, dead ones too."""
        return [mount for mount in self.mounts.values() if isinstance(mount, DelegatingMount)]

    def _happen(self, op: Op) -> None:
        verb, *args = op
        if verb == "kill":
            self._kill(args[0])
        elif verb == "crash":
            self.database.crash()
        elif verb == "repeat":
            self._repeat(args[0])
        elif verb == "wait":
            self._pass(6.0, set())
        else:
            self._pass(7.0, {self.mounts[args[0]].number})

    def _pass(self, seconds: float, frozen: set[int]) -> None:
        """Time passes, in which sessions that are neither frozen nor dead send heartbeats."""
        database = self.database
        database.now += seconds
        database.recalls.clear()
        for number, session in database.sessions.items():
            if number in frozen | database.dead | database.fenced or session.expires < 0:
                continue
            session.expires = database.now + 6.0
            session.trusted_until = database.now + TRUST
        for number in frozen:
            database.sessions[number].expires = -1.0

    def _kill(self, client: int) -> None:
        """The process of a mount ends; its host and its journal stay."""
        mount = self.mounts.get(client)
        if not isinstance(mount, DelegatingMount):
            return  # it has not started
        database, number = self.database, mount.number
        mount.killed = True
        database.dead.add(number)
        database.unsure.discard(number)
        for request in database.requests:
            if request.session.number == number:
                request.is_cut = True
        database.sessions[number].inbox.clear()
        for files in DISKS.get(Path(mount.host), ()):
            if files.locked_by is mount:
                files.locked_by = None
        for key, (event, _) in list(self._gates.items()):
            if event.client == number:
                del self._gates[key]
        loop = cast("AlarmLoop", self.loop)
        loop.alarms = [alarm for alarm in loop.alarms if alarm.mount is not mount]
        self._running -= self._unfinished.pop(client, 0)

    def _repeat(self, client: int) -> None:
        """The answer of a batch is lost: the session sends it again, and the first copy runs on."""
        number = self.mounts[client].number
        for request in self.database.requests:
            if request.session.number == number and request.kind == "apply" and not request.is_cut:
                session = self.database.delegating(number)
                copy = type(request)(session, -request.number, "apply", request.args)
                copy.is_cut, copy.stage = True, request.stage
                copy.answer, copy.error = request.answer, request.error
                request.stage, request.error = "do", None
                self.database.requests.append(copy)
                return

    # -- what is explored --

    def enabled(self) -> list[Event]:
        """See World. A call that nothing else can help is reminded, and then time passes."""
        found = super().enabled()
        loop = cast("AlarmLoop", self.loop)
        loop.alarms = [alarm for alarm in loop.alarms if not alarm.timer.cancelled()]
        for alarm in loop.alarms:
            number = alarm.mount.number
            found.append(Event(("alarm", number, alarm.number), partial(loop.ring, alarm), number))
        for number in sorted(self.database.unsure):
            if number not in self._surveying:
                found.append(Event(("survey", number), partial(self._survey, number), alone=True))
        return found or self._last_resort()

    def _survey(self, number: int) -> None:
        self._surveying.add(number)
        self._start(self._surveyed(number))

    async def _surveyed(self, number: int) -> None:
        await self.database.delegating(number).survey()
        self._surveying.discard(number)

    def _last_resort(self) -> list[Event]:
        database = self.database
        waiting = [one for one in database.requests if database.waits(one)]
        for request in waiting:
            key = ("remind", request.session.number, request.number)
            count = self._reminded.get(key, 0)
            if count < REMINDERS:
                self._reminded[key] = count + 1
                return [Event((*key, count), partial(database.remind, request), alone=True)]
        if (waiting or database.requests) and self._patience:
            self._patience -= 1
            return [Event(("time", self._patience), self._time, alone=True)]
        return []

    def _time(self) -> None:
        self._reminded.clear()
        self._pass(7.0, set())

    def _check(self) -> None:
        self._broken += self.database.broken
        self.database.broken = []
        if self._broken:
            raise Violation("; ".join(self._broken))
        database, clock = self.database, CLOCK.monotonic()
        now = database.history[-1]
        deciding: dict[int, int] = {}
        for mount in self.delegating():
            number = mount.number
            if mount.killed or number in database.unsure or clock > mount.session.trusted_until:
                continue
            if not mount.changing:
                self._check_kernel(mount, now, clock)
            self._check_holder(mount, deciding)
        if self._broken:
            raise Violation("; ".join(self._broken))

    def _check_holder(self, mount: DelegatingMount, deciding: dict[int, int]) -> None:
        """Every directory in the cache is covered by rows, or only this mount knows it."""
        database, number = self.database, mount.number
        if number in database.fenced:
            return
        for ino, cached in mount.delegated.table.directories.items():
            if ino not in database.volume.nodes:
                continue
            if (ino, number) not in database.leases:
                self._broken.append(f"client {number} keeps {ino} without a lease")
            if cached.delegated and mount.flusher.can_record:
                if database.delegations.get(ino) != number:
                    self._broken.append(f"client {number} decides about {ino} without delegation")
                if ino in deciding:
                    self._broken.append(f"clients {number} and {deciding[ino]} decide about {ino}")
                deciding[ino] = number

    def _moment(self, mount: Mount) -> int:
        """A session that has not noticed a crash may show what the crash undid."""
        if mount.number in self.database.unsure:
            return self.database.crashed_at
        return super()._moment(mount)

    def _is_over(self, mount: Mount, answer: object) -> bool:
        return answer == ("errno", EIO) and mount.number in self.database.fenced

    def finish(self) -> None:
        """Check that every call has ended and that the database has every change."""
        if self._running or self.database.requests:
            left = [(one.session.number, one.kind, one.stage) for one in self.database.requests]
            raise Violation(f"{self._running} programs do not end; under way: {left}")
        if self.loop.complaints:
            raise Violation(str(self.loop.complaints))
        for mount in self.delegating():
            if not mount.killed and self.database.pending.get(mount.number):
                raise Violation(f"client {mount.number} does not send its changes")
        self._probe()
        self._check_rows()

    def _probe(self) -> None:
        """Change every directory, so that the holder of its delegation must give it back."""
        database = self.database
        nodes = database.volume.nodes
        for ino in sorted(ino for ino, node in nodes.items() if node.attr.is_dir):
            if ino in database.volume.nodes:
                self._spawn(("probe", ino), HTTP, [("chmod", ino, 0o711)])
                self._run_out()
        if self._running:
            raise Violation("delegations cannot be recalled")

    def _check_rows(self) -> None:
        """Nothing is left but the rows, and they fit each other."""
        database = self.database
        waiting = {n for n in database.pending if n not in database.dead}
        if waiting:
            raise Violation(f"sessions {waiting} have changes under no delegation")
        nodes = database.volume.nodes
        for ino, node in nodes.items():
            below = [nodes.get(entry.ino) for entry in node.entries.values()]
            if None in below:
                raise Violation(f"a name in {ino} has no inode")
            if node.attr.is_dir:
                count = 2 + sum(1 for child in below if child is not None and child.attr.is_dir)
                if node.attr.nlink != count:
                    raise Violation(f"{ino} has {node.attr.nlink} links instead of {count}")
        named = {entry.ino for node in nodes.values() for entry in node.entries.values()}
        lost = set(nodes) - named - {1} - set(database.volume.sustained)
        if lost:
            raise Violation(f"inodes {lost} have no name")
