"""A session on a `DelegationDatabase`: what `DelegatedMeta` sees of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.lease_request import VISIBLE, Request
from tests.model.lease_session import LeaseSession
from wrkfs.errors import Fenced
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from tests.doubles.meta_store import MemoryMeta
    from tests.model.delegations.store import DelegationDatabase
    from wrkfs.meta.interface.delegations import Batch
    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest
    from wrkfs.types import Attr, SessionId

IDS = 1000
"""Each session takes the numbers of its inodes from a range of its own."""


class DelegationSession(LeaseSession):
    """A session that may have delegations, on a host with other ones."""

    database: DelegationDatabase

    def __init__(self, database: DelegationDatabase, *, listens: bool, delegates: bool) -> None:
        self.delegates = delegates
        self.tries: dict[int, int] = {}
        self.waits: dict[int, Hashable] = {}
        """By call: what it saw when it began to wait for other sessions."""
        self.durable: set[int] = set()
        self.asked_back: list[list[Ino]] = []
        """Notifications of delegations; each also has an empty one in `inbox`."""
        self.neighbours: Callable[[], list[DelegationSession]] = list
        """Returns the sessions of dead processes of this host."""
        self.granted: set[Ino] = set()
        self._is_contended: Callable[[Ino], bool] = lambda _: False
        self._replay: Callable[[], Awaitable[set[SessionId]]] | None = None
        self._on_delegation: Callable[[Sequence[Ino]], None] = lambda _: None
        self._forget_cache: Callable[[], Awaitable[None]] | None = None
        super().__init__(database, listens=listens)
        self._next = IDS * self.number
        database.applied[self.number] = 0

    @property
    def upkeep(self) -> MemoryMeta:
        return self

    async def start(self) -> None:
        """Register; a second time, replay journals and fence dead sessions of the host."""
        if not self._session:
            await super().start()
            return
        dead_sessions = self.neighbours()
        busy = set() if self._replay is None else await self._replay()
        for dead in dead_sessions:
            if dead.session not in busy:
                await self.fence(dead.session, force=True)

    def first_stage(self, kind: str) -> str:
        """Return the stage in which a call begins."""
        if kind in VISIBLE:
            return "foreign"
        return "lock" if kind in ("open", "release", "sustain") else "do"

    def send(self, request: Request) -> None:
        """A call leaves a process that was not killed."""
        request.stage = self.first_stage(request.kind)
        request.delegates = request.kind == "mkdir" and not self._is_contended(request.args[0])
        if self.number not in self.database.dead:
            super().send(request)

    def hear(self) -> None:
        """The next notification arrives."""
        self.heard += 1
        inos = self.inbox.pop(0)
        if inos:
            self._on_recall(inos)
        else:
            self._on_delegation(self.asked_back.pop(0))

    async def beat(self) -> None:
        """A heartbeat; a fenced session has no more."""
        try:
            await super().beat()
        except Fenced:
            return

    async def survey(self) -> None:
        """Notice a crash of the database: see sessions.MountSession."""
        if self.on_crash is not None:
            self.on_crash(False)
        if self._forget_cache is not None:
            await self._forget_cache()
        self.database.unsure.discard(self.number)

    # -- in the database --

    def take_effect(self, request: Request) -> None:
        """A change is committed."""
        super().take_effect(request)
        made = request.answer
        is_made = request.kind == "mkdir" and request.error is None and self.delegates
        if is_made and (made.ino, self.number) in self.database.leases and request.delegates:
            self.database.delegations[made.ino] = self.number
            self.granted.add(made.ino)

    def _do_beat(self) -> int:
        if self.number in self.database.fenced:
            raise Fenced
        return super()._do_beat()

    def _do_stat(self, ino: Ino) -> tuple[Attr, bool]:
        attr, settled = super()._do_stat(ino)
        if "settled_files" not in self.database.faults:
            settled = settled and not self.database.locked(*self.database.covers(ino))
        return attr, settled

    def _do_read_tree(self, request: TreeRequest) -> TreeAnswer:
        database = self.database
        held = {ino for ino, _ in database.elsewhere(self.number, database.delegations)}
        if "blind_reads" in database.faults:
            held = set()
        answer = super()._do_read_tree(request)
        answer.listings = [
            listing
            for listing in answer.listings
            if not held & {listing.attr.ino, *(e.dentry.attr.ino for e in listing.entries)}
        ]
        for ino in [ino for ino in answer.leased if ino in held]:
            answer.leased.remove(ino)
            database.end_leases({(ino, self.number)})
        return answer

    def _do_claim(self, session: int) -> int | None:
        if "fenced_replay" in self.database.faults:
            return self.database.applied.get(session, 0)
        last = self.database.applied.get(session)
        if last is not None:
            self.database.sessions[session].expires = self.database.now + 6.0
        return last

    def _do_fence(self, session: int, force: bool) -> bool:
        if force or self.database.is_expired(session):
            self.database.fence(session, replayed=force)
            return True
        return False

    # -- what is asked --

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        on_void: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
        held: Callable[[], Sequence[Ino]],
    ) -> None:
        super().watch_leases(on_recall, on_void, forget, held)
        self._forget_cache = forget

    def watch_delegations(
        self, on_recall: Callable[[Sequence[Ino]], None], is_contended: Callable[[Ino], bool]
    ) -> None:
        self._on_delegation = on_recall
        self._is_contended = is_contended

    def watch_journals(self, replay: Callable[[], Awaitable[set[SessionId]]]) -> None:
        self._replay = replay

    def keep_session(self) -> None:
        raise AssertionError("no mount of the model is closed")

    def is_open(self, ino: Ino) -> bool:
        return self._session in self._volume.sustained.get(ino, {})

    async def fresh_id(self) -> Ino:
        self._next += 1
        return Ino(self._next)

    async def release(self, ino: Ino) -> None:
        self._volume.release(ino, self._session)  # releases are collected in the background
        self.database.note(self.number)

    async def delegate(self, directory: Ino) -> bool:
        return bool(await self.ask("delegate", directory))

    async def apply(self, seq: int, batch: Batch, release: Sequence[Ino]) -> None:
        await self.ask("apply", self.number, seq, batch.arguments(), tuple(release))

    @property
    def channel(self) -> str:
        return f"channel{self.number}"

    async def claim(self, session: SessionId, _epoch: int, _channel: str) -> int | None:
        last: int | None = await self.ask("claim", int(session))
        return last

    async def apply_for(self, session: SessionId, _epoch: int, seq: int, batch: Batch) -> None:
        await self.ask("apply", int(session), seq, batch.arguments(), ())

    async def fence(self, session: SessionId, *, force: bool = False) -> bool:
        return bool(await self.ask("fence", int(session), force))

    async def reserve_room(self, _size: int, _inodes: int) -> bool:
        return True
