"""A lease store whose database and wires stand still until a schedule lets them go on.

It has the granularity of functions/1_leases.sql. A change is four events: it locks its rows (and
waits for who has them), looks for leases of others, commits (the change, or recalls and their
notifications), and its answer arrives. A question reads what is committed in one event and its
answer arrives in another. Notifications arrive in order, but at any time. A change may be cut off
from its sender, and be applied later, until the session settles what failed (`give_up`). What the
changes mean is what `MemoryMeta` makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.doubles.meta_volume import MemoryVolume
from tests.model.lease_request import VISIBLE, Request
from tests.model.schedules import Event
from wrkfs.errors import Exists, NotEmpty, NotFound, Unavailable, WrkfsError
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tests.model.lease_session import LeaseSession
    from wrkfs.meta.interface.trees import TreeRequest
    from wrkfs.types import Attr


@dataclass(frozen=True, slots=True)
class State:
    """What is committed: the names, and the attributes of all inodes."""

    names: dict[tuple[Ino, bytes], Ino]
    attrs: dict[Ino, Attr]


@dataclass(slots=True)
class Plan:
    """What a change locks, and where it looks for leases; or why it is refused."""

    rows: set[Ino]
    homes: set[Ino] = field(default_factory=set)
    error: WrkfsError | None = None


class Database:
    """The shared state, and all calls under way."""

    def __init__(self, *, impatience: int = 0, look_first: bool = False) -> None:
        """`impatience`: how often a change that waits for leases recalls them once more, though
        nothing has changed. `look_first`: the order that the rules forbid."""
        self.volume = MemoryVolume()
        self.impatience = impatience
        self.look_first = look_first
        self.now = 100.0
        self.leases: set[tuple[Ino, int]] = set()
        self.ended: dict[tuple[Ino, int], int] = {}
        """How many leases of a session on a directory have ended."""
        self.recalls: set[tuple[Ino, int]] = set()
        self.locks: dict[Ino, Request] = {}
        self.homes: dict[Ino, Ino] = {}
        self.requests: list[Request] = []
        self.sessions: dict[int, LeaseSession] = {}
        self.history: list[State] = []
        self.note()

    def note(self) -> None:
        """Something was committed."""
        nodes = self.volume.nodes
        names = {
            (ino, name): entry.ino
            for ino, node in nodes.items()
            for name, entry in node.entries.items()
        }
        self.history.append(State(names, {ino: node.attr for ino, node in nodes.items()}))

    def shown(self, attr: Attr) -> Attr:
        """Attributes with the place that leases go by."""
        node = self.volume.nodes[attr.ino]
        home = node.parent if attr.is_dir else self.homes.get(attr.ino, Ino(0))
        return replace(attr, parent=home)

    def locked(self, *inos: Ino) -> bool:
        """Whether a change under way has one of these rows."""
        return any(ino in self.locks for ino in inos)

    # -- what a change needs --

    def _named(self, parent: Ino, name: bytes) -> Ino | None:
        return self.history[-1].names.get((parent, name))

    def _is_dir(self, ino: Ino | None) -> bool:
        node = None if ino is None else self.volume.nodes.get(ino)
        return node is not None and node.attr.is_dir

    def _home(self, ino: Ino) -> set[Ino]:
        node = self.volume.nodes.get(ino)
        if node is None or node.attr.nlink == 0:
            return set()
        home = ino if node.attr.is_dir else self.homes.get(ino, Ino(0))
        return {home} if home else set()

    def plan(self, kind: str, args: tuple[Any, ...]) -> Plan:
        """See Plan; the order of checks is that of the functions."""
        if kind in ("setattr", "commit", "open", "release"):
            ino = args[0].ino if kind == "commit" else args[0]
            gone = ino not in self.volume.nodes and kind != "release"
            homes = self._home(ino) if kind in VISIBLE else set()
            return Plan({ino}, homes, NotFound() if gone else None)
        if kind == "sustain":
            return Plan(set(args[0]))
        if kind == "rename":
            return self._plan_rename(*args)
        parent, name = args[1:3] if kind == "link" else args[:2]
        ino = self._named(parent, name)
        if parent not in self.volume.nodes:
            return Plan({parent}, error=NotFound())
        if kind == "create" and ino is not None:
            return Plan({parent, ino}, error=Exists()) if args[-1] else Plan({ino})
        if kind in ("create", "mkdir"):
            return Plan({parent}, {parent}, None if ino is None else Exists())
        if kind == "link":
            missing = args[0] not in self.volume.nodes
            error = Exists() if ino is not None else NotFound() if missing else None
            return Plan({parent, args[0]}, {parent} | self._home(args[0]), error)
        if ino is None:
            return Plan({parent}, error=NotFound())
        if kind == "unlink":
            return Plan({parent, ino}, {parent})
        full = NotEmpty() if self.volume.nodes[ino].entries else None
        return Plan({parent, ino}, {parent, ino}, full)

    def _plan_rename(self, parent: Ino, name: bytes, goal: Ino, new: bytes) -> Plan:
        ino, target = self._named(parent, name), self._named(goal, new)
        if ino is None or goal not in self.volume.nodes:
            return Plan({parent, goal}, error=NotFound())
        inos = {ino} if target is None else {ino, target}
        homes = {parent, goal} | {one for one in inos if self._is_dir(one)}
        return Plan({parent, goal} | inos, homes)

    # -- events --

    def events(self) -> list[Event]:
        """What may happen in the database and on the wires."""
        found = []
        for request in self.requests:
            event = self._event(request)
            if event is not None:
                found.append(event)
        for session in self.sessions.values():
            if session.inbox:
                key = ("recall", session.number, session.heard)
                found.append(Event(key, session.hear, session.number))
        return found

    def _event(self, request: Request) -> Event | None:
        key = (request.kind, request.session.number, request.number, request.stage)
        stage = request.stage
        if request.kind == "settle" and stage == "do":
            # Waits for what is being made.
            if any(other.stage in ("look", "commit") for other in self._late(request.session)):
                return None
            return Event(key, lambda: self._settle(request), request.session.number, alone=True)
        if stage == "deliver":
            roles = frozenset({"end"})
            return Event(key, lambda: self._deliver(request), request.session.number, roles=roles)
        if stage == "lock":
            return self._lock_event(key, request)
        if stage == "look":
            others = {("lease", ino, n) for ino in request.homes for n in self.sessions}
            others -= {("lease", ino, request.session.number) for ino in request.homes}
            reads = others | {("session", number) for number in self.sessions}
            return Event(key, lambda: self._look(request), reads=frozenset(reads))
        if stage == "commit":
            return self._commit_event(key, request)
        return self._simple_event(key, request)

    def _late(self, session: LeaseSession) -> list[Request]:
        """Changes that a session has heard no answer of, and that may still be applied."""
        return [one for one in self.requests if one.is_cut and one.session is session]

    def cut(self, session: LeaseSession) -> None:
        """The changes of a session are cut off from it."""
        for request in list(self.requests):
            if request.session is session and request.kind in VISIBLE and not request.is_cut:
                request.cut(Unavailable("cut off"))
                if request.stage == "deliver":
                    self.requests.remove(request)

    def _settle(self, request: Request) -> None:
        """What is still on its way is refused from now on."""
        for late in self._late(request.session):
            self.requests.remove(late)
        request.answered()

    def _lock_event(self, key: tuple[Hashable, ...], request: Request) -> Event | None:
        plan = self.plan(request.kind, request.args)
        busy = any(self.locks.get(ino, request) is not request for ino in plan.rows)
        if plan.error is None and busy:
            return None
        reads: set[Hashable] = set()
        if request.found:
            if self.numbered(self.foreign(request)) == request.seen and not request.impatience:
                return None
            reads = {("lease", ino, n) for ino in request.homes for n in self.sessions}
        rows = frozenset(("row", ino) for ino in plan.rows)
        return Event(key, lambda: self._lock(request), reads=frozenset(reads), writes=rows)

    def _commit_event(self, key: tuple[Hashable, ...], request: Request) -> Event:
        writes: set[Hashable] = {("row", ino) for ino in request.rows}
        writes |= {("session", number) for number in request.ended}
        writes |= {("lease", i, number) for i, number in self.leases if number in request.ended}
        if request.kind == "rmdir":
            writes |= {("lease", ino, request.session.number) for ino in request.homes}
        if request.found:
            writes |= {("recalled", ino) for ino in request.homes}
            writes |= {("inbox", number) for _, number in request.found}
        visible = request.kind in VISIBLE and not request.found
        roles = frozenset({"commit"}) if visible else frozenset[str]()
        return Event(key, lambda: self._commit(request), writes=frozenset(writes), roles=roles)

    def _simple_event(self, key: tuple[Hashable, ...], request: Request) -> Event | None:
        number, args = request.session.number, request.args
        reads: set[Hashable] = {("session", number)}
        writes: set[Hashable] = set()
        if request.kind == "give_back":
            writes = {("lease", ino, number) for ino in args[0]}
        elif request.kind == "take_lease":
            reads |= {("recalled", args[0]), ("row", args[0])}
            writes = {("lease", args[0], number)}
        elif request.kind == "beat":
            if any(number in other.ended for other in self.requests if other.stage == "commit"):
                return None
            writes = {("session", number)}
        elif request.kind == "read_tree":
            reads |= {("row", ino) for ino in self._tree_rows(args[0])}
            taken = self._subdirectories(args[0])
            reads |= {("recalled", ino) for ino in taken} | {("row", ino) for ino in taken}
            writes = {("lease", ino, number) for ino in taken}
        else:
            reads = {("row", ino) for ino in self._read_rows(request)}
        return Event(
            key,
            lambda: request.session.answer(request),
            reads=frozenset(reads),
            writes=frozenset(writes),
        )

    def _read_rows(self, request: Request) -> set[Ino]:
        ino: Ino = request.args[0]
        rows = {ino}
        if request.kind in ("lookup", "find"):
            found = self._named(ino, request.args[1])
            rows |= {found} if found is not None else set()
        elif request.kind in ("readdir", "entries") and ino in self.volume.nodes:
            rows |= {entry.ino for entry in self.volume.nodes[ino].entries.values()}
        return rows

    def _tree_rows(self, request: TreeRequest) -> set[Ino]:
        """Return the directories of a request, and the inodes in them."""
        rows = set(request.directories)
        for ino in request.directories:
            if ino in self.volume.nodes:
                rows |= {entry.ino for entry in self.volume.nodes[ino].entries.values()}
        return rows

    def _subdirectories(self, request: TreeRequest) -> set[Ino]:
        """Return the directories on which a request may take leases."""
        return {ino for ino in self._tree_rows(request) if self._is_dir(ino)} | set(request.take)

    def removed(self, request: Request) -> set[Ino]:
        """The directory that a change is about to remove."""
        return request.homes - {request.args[0]} if request.kind == "rmdir" else set()

    def foreign(self, request: Request) -> set[tuple[Ino, int]]:
        """Leases of others where a change looks."""
        me = request.session.number
        return {one for one in self.leases if one[0] in request.homes and one[1] != me}

    def numbered(self, leases: set[tuple[Ino, int]]) -> set[tuple[Ino, int, int]]:
        """The same, told from those that were given back before."""
        return {(*lease, self.ended.get(lease, 0)) for lease in leases}

    def end_leases(self, leases: set[tuple[Ino, int]]) -> None:
        """Removes rows, if they are there."""
        for lease in leases & self.leases:
            self.ended[lease] = self.ended.get(lease, 0) + 1
        self.leases -= leases

    # -- their effects --

    def _lock(self, request: Request) -> None:
        if request.found and self.numbered(self.foreign(request)) == request.seen:
            request.impatience -= 1
        plan = self.plan(request.kind, request.args)
        if plan.error is not None:
            request.answered(error=plan.error)
            return
        request.rows, request.homes, request.found = plan.rows, plan.homes, set()
        if self.look_first and request.stage == "lock" and plan.homes:
            # The order that the rules forbid: looks now, and locks with the commit.
            self._look(request)
            return
        self.locks.update(dict.fromkeys(plan.rows, request))
        request.stage = "look" if plan.homes else "commit"

    def _look(self, request: Request) -> None:
        found = self.foreign(request)
        request.ended = {n for _, n in found if self.sessions[n].expires < self.now}
        request.found = {one for one in found if one[1] not in request.ended}
        request.seen = self.numbered(request.found)
        request.stage = "commit"

    def _commit(self, request: Request) -> None:
        for number in request.ended:
            self.end_leases({one for one in self.leases if one[1] == number})
            self.sessions[number].db_tenure += 1
        request.ended = set()
        for ino in [ino for ino, owner in self.locks.items() if owner is request]:
            del self.locks[ino]
        if request.found:
            self.recalls |= {(ino, request.session.number) for ino in request.homes}
            for number in sorted({number for _, number in request.found}):
                theirs = sorted(ino for ino, holder in request.found if holder == number)
                self.sessions[number].inbox.append(theirs)
            request.stage = "lock"
            return
        request.session.take_effect(request)
        if request.kind in (*VISIBLE, "release"):
            self.note()

    def _deliver(self, request: Request) -> None:
        self.requests.remove(request)
        if request.is_cut:
            return
        if request.error is not None:
            request.future.set_exception(request.error)
        else:
            request.future.set_result(request.answer)
