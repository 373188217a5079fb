"""A `lease_store.Database` with write delegations, fences and crashes.

It has the granularity of functions/1_delegations.sql and 4_apply.sql. A change first looks for
delegations of other sessions, then locks its rows, looks for leases, and commits. A grant locks the
row of its directory, looks for leases, and commits. A read looks for delegations in its own
snapshot. If there are some, it recalls them in a second call, and reads again. A batch is one
transaction, and so are a recall and a fence.

The history of this database has the *answered* state: the rows, and what holders have answered and
not sent (`pending`). So a batch changes nothing in it, and a loss of answered changes shows.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, cast

from tests.model.delegations.rows import Batch, Saved, differences, overlaid, put
from tests.model.lease_request import VISIBLE
from tests.model.lease_store import Database, State
from tests.model.schedules import Event
from wrkfs.errors import Fenced
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tests.model.delegations.session import DelegationSession
    from tests.model.lease_request import Request
    from wrkfs.meta.delegations.delta import Record

FAULTS = frozenset(
    {
        "release_first",
        "repeats",
        "shared_grant",
        "fenced_replay",
        "blind_reads",
        "blind_changes",
        "lazy_grant",
        "lazy_apply",
        "no_implied_grants",
        "settled_files",
        "orphaned_leases",
    }
)
"""Faults of the database that the model must find; see test_delegation_protocol.py."""
READS = ("lookup", "find", "getattr", "stat", "readdir", "entries", "file_map")


class DelegationDatabase(Database):
    """The shared state with delegations."""

    def __init__(self, *, faults: frozenset[str], crashes: bool, look_first: bool = False) -> None:
        """`crashes`: the database saves its durable state, for `crash`."""
        assert faults <= FAULTS, faults - FAULTS
        self.faults, self._crashes = faults, crashes
        self.delegations: dict[Ino, int] = {}
        self.given_back: Counter[Ino] = Counter()
        self.applied: dict[int, int] = {}
        self.fenced: set[int] = set()
        self.pending: dict[int, list[tuple[int, list[Record]]]] = {}
        """By session: the number of the batch, and the records, of each answered change."""
        self.broken: list[str] = []
        self.dead: set[int] = set()
        """Sessions whose process was killed."""
        self.unsure: set[int] = set()
        """Sessions that may rely on a state before the last crash."""
        self.crashed_at = 0
        self.crash_time = -1000.0
        self.client: dict[int, int] = {}
        self._blame: dict[Hashable, int] = {}
        self._saved: Saved | None = None
        super().__init__(look_first=look_first)

    # -- the answered state --

    def note(self, session: int = 0) -> None:
        """Something was committed, or a holder decided it."""
        state = self.state()
        if self._crashes and self.history:
            for key in differences(self.history[-1], state):
                self._blame[key] = session
        self.history.append(state)

    def state(self) -> State:
        """Return the rows, with what holders have answered and not sent."""
        nodes = self.volume.nodes
        names = {
            (ino, name): entry.ino
            for ino, node in nodes.items()
            for name, entry in node.entries.items()
        }
        attrs = {ino: node.attr for ino, node in nodes.items()}
        for changes in self.pending.values():
            for _, records in changes:
                overlaid(records, names, attrs)
        return State(names, attrs)

    def decided(self, session: int, number: int, records: Iterable[Record]) -> None:
        """A holder has answered a change; `number` is that of the batch that will have it."""
        if session in self.fenced:
            return  # void: nobody but the holder sees it, and its next batch is refused
        self.pending.setdefault(session, []).append((number, list(records)))
        self.note(session)

    def _named(self, parent: Ino, name: bytes) -> Ino | None:
        node = self.volume.nodes.get(parent)
        entry = None if node is None else node.entries.get(name)
        return None if entry is None else entry.ino

    # -- who has delegations --

    def covers(self, ino: Ino) -> set[Ino]:
        """Return the directory whose delegation covers an inode."""
        node = self.volume.nodes.get(ino)
        if node is None:
            return set()
        home = ino if node.attr.is_dir else self.homes.get(ino, Ino(0))
        return {home} if home else set()

    def _covers_of_read(self, request: Request) -> set[Ino]:
        ino, kind = request.args[0], request.kind
        if kind in ("lookup", "find"):
            child = self._named(ino, request.args[1])
            return {ino} | ({child} if child is not None and self._is_dir(child) else set())
        if kind in ("readdir", "entries"):
            node = self.volume.nodes.get(ino)
            below = [] if node is None else [entry.ino for entry in node.entries.values()]
            return {ino} | {child for child in below if self._is_dir(child)}
        return self.covers(ino)

    def _covers_of_change(self, request: Request) -> set[Ino]:
        args = request.args
        if request.kind in ("setattr", "commit"):
            return self.covers(args[0].ino if request.kind == "commit" else args[0])
        if request.kind == "link":
            return {args[1]} | self.covers(args[0])
        parents = [args[0]] if request.kind != "rename" else [args[0], args[2]]
        places = [args[:2]] if request.kind != "rename" else [args[:2], args[2:4]]
        found = (self._named(parent, name) for parent, name in places)
        return {*parents, *(ino for ino in found if ino is not None and self._is_dir(ino))}

    def elsewhere(self, session: int, directories: Iterable[Ino]) -> set[tuple[Ino, int]]:
        """Return delegations of other sessions on these directories."""
        return {
            (ino, self.delegations[ino])
            for ino in directories
            if self.delegations.get(ino, session) != session
        }

    def end_delegations(self, directories: Iterable[Ino], session: int) -> None:
        """Delete rows of a session, if they are there."""
        for ino in directories:
            if self.delegations.get(ino) == session:
                del self.delegations[ino]
                self.given_back[ino] += 1

    def is_expired(self, session: int) -> bool:
        """Return True if other sessions need not wait for a session."""
        return session in self.fenced or self.sessions[session].expires < self.now

    def _recall(self, found: set[tuple[Ino, int]]) -> None:
        """Ask the holders."""
        for holder in sorted({holder for _, holder in found} - self.dead - self.unsure):
            theirs = sorted(ino for ino, number in found if number == holder)
            self.delegating(holder).asked_back.append(theirs)
            self.sessions[holder].inbox.append([])

    def delegating(self, session: int) -> DelegationSession:
        """Return a session."""
        return cast("DelegationSession", self.sessions[session])

    # -- what may happen --

    def _event(self, request: Request) -> Event | None:
        number, stage = request.session.number, request.stage
        key = (request.kind, number, request.number, stage, self._tries(request))
        if number in self.dead and not request.is_cut:
            return None
        if stage == "deliver" and self.delegating(number).delegates:
            roles = frozenset({"end", "commit"})
            return Event(key, lambda: self._deliver(request), number, roles=roles)
        if number in self.unsure or self._others_unsure(number):
            return super()._event(request) if stage == "deliver" else None
        if stage == "foreign":
            return self._foreign_event(key, request)
        if stage == "recall":
            return Event(key, lambda: self._recall_for(request), alone=True)
        if request.kind == "delegate":
            return self._delegate_event(key, request)
        if request.kind == "apply":
            busy = any(ino in self.locks for ino in Batch(request.args[2]).inos)
            return None if busy else Event(key, lambda: self._apply(request), alone=True)
        if request.kind in ("fence", "claim"):
            if request.kind == "fence" and self._in_progress(request.args[0]):
                return None
            return Event(key, lambda: request.session.answer(request), alone=True)
        if request.kind in READS and stage == "do":
            return self._read_event(key, request)
        return super()._event(request)

    def _tries(self, request: Request) -> int:
        return self.delegating(request.session.number).tries.get(request.number, 0)

    def _others_unsure(self, session: int) -> bool:
        """Return True if another session may still rely on a state before a crash."""
        return any(
            number != session and number not in self.dead and not self.is_expired(number)
            for number in self.unsure
            if self.sessions[number].listens
        )

    def _in_progress(self, session: int) -> bool:
        """Return True if a transaction of a session holds one of its slots."""
        return any(
            one.session.number == session
            and one.kind in VISIBLE
            and one.stage in ("lock", "look", "commit")
            for one in self.requests
        )

    def _waits_for(self, request: Request) -> Hashable:
        """Return what must change before a waiting call is worth another attempt."""
        number = request.session.number
        found = self.elsewhere(number, request.homes)
        leases = self.numbered(self.foreign(request)) if request.kind in VISIBLE else set()
        return (
            frozenset((*one, self.given_back[one[0]]) for one in found),
            frozenset(leases),
            frozenset(n for _, n in found if self.is_expired(n)),
        )

    def waits(self, request: Request) -> bool:
        """Return True if a call would find what it found before."""
        memory = self.delegating(request.session.number).waits
        return request.number in memory and memory[request.number] == self._waits_for(request)

    def remind(self, request: Request) -> None:
        """Let a call that waits try again."""
        self.delegating(request.session.number).waits.pop(request.number, None)

    def _delegation_keys(self, directories: Iterable[Ino]) -> set[Hashable]:
        return {("delegation", ino) for ino in directories}

    def _read_event(self, key: tuple[Hashable, ...], request: Request) -> Event | None:
        if self.waits(request):
            return None
        covers = self._covers_of_read(request)
        reads = {("row", ino) for ino in self._read_rows(request)} | self._delegation_keys(covers)
        if request.kind == "stat":
            reads |= {("row", ino) for ino in covers}
        return Event(key, lambda: self._read(request, covers), reads=frozenset(reads))

    def _read(self, request: Request, covers: set[Ino]) -> None:
        number = request.session.number
        found = set() if "blind_reads" in self.faults else self.elsewhere(number, covers)
        self._count(request)
        if found:
            request.homes, request.stage = {ino for ino, _ in found}, "recall"
        else:
            request.session.answer(request)

    def _count(self, request: Request) -> None:
        tries = self.delegating(request.session.number).tries
        tries[request.number] = tries.get(request.number, 0) + 1

    def _recall_for(self, request: Request) -> None:
        """`recall_delegations`: asks the holders, and fences those that have expired."""
        number = request.session.number
        self._recall(self.elsewhere(number, request.homes))
        self.fence_holders(number)
        self.delegating(number).waits[request.number] = self._waits_for(request)
        request.stage = "do"

    def _foreign_event(self, key: tuple[Hashable, ...], request: Request) -> Event | None:
        number = request.session.number
        if self.waits(request):
            return None
        covers = self._covers_of_change(request)
        found = self.elsewhere(number, covers)
        if request.found or any(self.is_expired(n) for _, n in found):
            return Event(key, lambda: self._look_for_holders(request, covers), alone=True)
        reads = self._delegation_keys(covers) | {("row", ino) for ino in covers}
        writes = {("inbox", holder) for _, holder in found}
        return Event(
            key,
            lambda: self._look_for_holders(request, covers),
            reads=frozenset(reads),
            writes=frozenset(writes),
        )

    def _look_for_holders(self, request: Request, covers: set[Ino]) -> None:
        number = request.session.number
        self._count(request)
        if number in self.fenced:
            request.answered(error=Fenced())
            return
        if self._tries(request) > 1:
            self.fence_holders(number)  # the client does so after some attempts
        found = set() if "blind_changes" in self.faults else self.elsewhere(number, covers)
        if found:
            self._recall(found)
            request.homes = {ino for ino, _ in found}
            self.delegating(number).waits[request.number] = self._waits_for(request)
            return
        request.found = set()
        request.stage = "lock"

    # -- changes --

    def _look(self, request: Request) -> None:
        super()._look(request)
        holders = {holder for _, holder in self.elsewhere(0, request.homes)}
        back = {n for n in request.ended if n in holders}
        request.ended -= back
        request.found |= {one for one in self.foreign(request) if one[1] in back}
        request.seen = self.numbered(request.found)

    def _commit(self, request: Request) -> None:
        kept = (
            {(ino, n) for ino, n in self.delegations.items() if (ino, n) in self.leases}
            if request.ended and "orphaned_leases" not in self.faults
            else set()
        )
        super()._commit(request)
        self.leases |= {(ino, n) for ino, n in kept if self.delegations.get(ino) == n}
        number = request.session.number
        if request.stage == "lock":
            request.stage = "foreign"
            self.delegating(number).waits[request.number] = self._waits_for(request)
        elif request.kind in VISIBLE:
            if request.error is None:
                for ino in [ino for ino in self.delegations if ino not in self.volume.nodes]:
                    self.end_delegations([ino], self.delegations[ino])
                self.history.pop()
                self.note(number)
            if self.delegating(number).delegates:
                self.save()

    # -- delegations --

    def _delegate_event(self, key: tuple[Hashable, ...], request: Request) -> Event | None:
        ino, number = request.args[0], request.session.number
        row, lease = ("row", ino), {("lease", ino, n) for n in self.sessions}
        if request.stage == "do":
            if self.locks.get(ino, request) is not request:
                return None
            reads = {("session", number), ("recalled", ino)}
            begin = partial(self._begin_grant, request)
            return Event(key, begin, reads=frozenset(reads), writes=frozenset({row}))
        if request.stage == "look":
            return Event(key, lambda: self._look_for_leases(request), reads=frozenset(lease))
        writes = frozenset({row, ("delegation", ino)})
        return Event(key, lambda: self._grant(request), writes=writes)

    def _begin_grant(self, request: Request) -> None:
        ino, number = request.args[0], request.session.number
        is_barred = any(at == ino and who != number for at, who in self.recalls)
        if self.is_expired(number) or is_barred or not self._is_dir(ino):
            request.answered(answer=False)
            return
        self.locks[ino] = request
        request.stage = "look"

    def _look_for_leases(self, request: Request) -> None:
        ino, number = request.args[0], request.session.number
        others = any(at == ino and n != number for at, n in self.leases)
        if (ino, number) not in self.leases or (others and "shared_grant" not in self.faults):
            del self.locks[ino]
            request.answered(answer=False)
            return
        request.stage = "commit"

    def _grant(self, request: Request) -> None:
        ino, number = request.args[0], request.session.number
        del self.locks[ino]
        if "shared_grant" in self.faults:
            self.delegations[ino] = number
        self.delegations.setdefault(ino, number)
        request.answered(answer=self.delegations[ino] == number)
        if "lazy_grant" not in self.faults:
            self.save()

    def _apply(self, request: Request) -> None:
        """`apply`: a batch of a session, which may be dead."""
        owner, seq, arguments, release = request.args
        self._count(request)
        last = self.applied.get(owner)
        if last is None and "fenced_replay" in self.faults:
            last = 0
        if last is None or (last > seq and "repeats" not in self.faults):
            request.answered(error=Fenced())
            return
        if "release_first" in self.faults and any(
            self.delegations.get(ino) == owner for ino in release
        ):
            self.end_delegations(release, owner)
            return
        if last < seq or "repeats" in self.faults:
            put(self, owner, Batch(arguments))
            self.end_delegations(release, owner)
            self.applied[owner] = max(seq, last)
            self._settle_pending(owner, seq)
            if "lazy_apply" not in self.faults:
                self.save()
        request.answered()

    def _settle_pending(self, owner: int, seq: int) -> None:
        """The rows have a batch now: what was answered must not have changed."""
        waiting = self.pending.pop(owner, [])
        if any(number < seq for number, _ in waiting):
            self.broken.append(f"batch {seq} of session {owner} came before an earlier one")
        left = [one for one in waiting if one[0] > seq]
        if left:
            self.pending[owner] = left
        now, state = self.history[-1], self.state()
        changed = sorted(map(str, differences(now, state)))
        if changed:
            self.broken.append(f"batch {seq} of session {owner} changed {', '.join(changed)}")
            self.history.append(state)

    # -- the end of sessions --

    def fence_holders(self, session: int) -> None:
        """Fence every other session that has delegations and has expired."""
        for holder in sorted(set(self.delegations.values()) - {session}):
            if self.is_expired(holder) and not self._in_progress(holder):
                self.fence(holder, replayed=False)

    def fence(self, session: int, *, replayed: bool) -> None:
        """End a session. `replayed`: a mount on its host has replayed its journal."""
        if session not in self.fenced:
            self.fenced.add(session)
            self.end_leases({one for one in self.leases if one[1] == session})
            self.applied.pop(session, None)
            self.volume.end(self.sessions[session].session)
            self.save()
        self.end_delegations(list(self.delegations), session)
        if self.pending.pop(session, None):
            if replayed:
                self.broken.append(f"answered changes of session {session} were not replayed")
            self.note(session)

    # -- crashes --

    def save(self) -> None:
        """Everything committed so far is durable."""
        if self._crashes:
            self._saved = Saved.of(self)
            for request in self.requests:
                if request.stage == "deliver":
                    self.delegating(request.session.number).durable.add(request.number)

    def crash(self) -> None:
        """The database restarts without the changes that were not durable, and without leases."""
        assert self._saved is not None
        before = self.history[-1]
        self._saved.restore(self)
        self.leases = {(ino, number) for ino, number in self.delegations.items()}
        self.recalls.clear()
        self.locks.clear()
        for request in list(self.requests):
            session = self.delegating(request.session.number)
            if request.is_cut:
                self.requests.remove(request)
            elif request.stage != "deliver" or request.number not in session.durable:
                session.waits.pop(request.number, None)
                request.error = None
                request.found, request.ended = set(), set()
                request.stage = session.first_stage(request.kind)
        for number in self.sessions:
            self.sessions[number].inbox.clear()
            self.delegating(number).asked_back.clear()
        self.unsure = set(self.sessions) - self.dead - self.fenced
        self.crashed_at, self.crash_time = len(self.history) - 1, self.now
        self.history.append(self.state())
        for key in differences(before, self.history[-1]):
            who = self._blame.get(key, 0)
            if who and self.delegating(who).delegates:
                self.broken.append(f"the crash undid {key}, which session {who} had answered")
