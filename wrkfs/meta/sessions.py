"""The registration of one mount: slots, numbers, heartbeat. Rules: schema.sql, SESSIONS."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, Doubtful, Fenced, StorageError, Unavailable, WrkfsError, by_errno
from wrkfs.meta.hosts import Witness, is_dead
from wrkfs.meta.sleep import TICK, Sleep
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    import asyncpg

    from wrkfs.meta.links import Link, Links
    from wrkfs.types import SliceId

log = logging.getLogger(__name__)

SLOTS = 16
"""Mutating calls in flight at once; more wait. Each is one row that statfs sums."""
HEARTBEAT = 2.0
"""Seconds between two heartbeats; the functions let a session expire after 6."""
REAP_EVERY = 5
"""Heartbeats between two looks for what is held by mistake, and for sessions that went away."""
SILENCE = timedelta(seconds=90)
"""Without heartbeat for so long, a session becomes suspected. Above the longest outage (60 s) that
must cost latency only."""
PATIENCE = timedelta(seconds=6)
"""So long a suspected session has for a heartbeat."""
RECLAIM_LIMIT = 2000
"""Inodes let go of in one call, so that no call is long."""
CLOSE_DEADLINE = 10.0
"""Seconds for ending a session in the database; after that others reap it."""

_NUMBERS = 4096
_NUMBERS_END = 1 << 62
_FENCED = -1
_AGAIN = 11
_RECALLED = -2
_AGAIN_MAX = 60
TRUST = 5.0
"""Seconds after the beginning of a heartbeat for which what is kept by lease may be served: one
less than others wait."""
RECALL_WAIT = 30.0
"""Seconds that a change waits for leases of others: a holder that is gone is waited for 6."""
_RECALL_PAUSES = (0.0004, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Between two looks whether they have been given back; the last one repeats."""
_SURVEY_PAUSE = 0.1
_SURVEY_MAX = 70


class _RecalledError(Exception):
    """Leases of others have been recalled; nothing was done."""


def boottime() -> float:
    """Seconds on a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class MountSession:
    """One registered session.

    Critical sections: a slot belongs to one call of `mutate`, with all repetitions; the
    range of numbers changes without an await, except under `_refill_lock`. A connection carries
    calls only after `_survey`, one at a time, has compared what the database remembers with what
    was answered: so no call is answered after a crash before the crash is known.
    """

    def __init__(
        self,
        links: Links,
        kind: str,
        held: Callable[[], list[Ino]] = list,
        on_crash: Callable[[bool], None] = lambda _: None,
        channel: str | None = None,
    ) -> None:
        """`held` gives the inodes that are open; `on_crash` is told of a crash of the database, and
        whether it has undone changes that this session had an answer for. `channel`: where recalls
        of leases are heard; None: it takes none."""
        self._links = links
        self._held = held
        self._on_crash = on_crash
        self._answered: dict[int, int] = {}
        self._minded: dict[int, int] = {}
        """Of the answered calls of each slot the last whose loss users would notice."""
        self._failed: dict[int, int] = {}
        self._run: datetime | None = None
        self._survey_lock = asyncio.Lock()
        links.greet = self._survey
        self._kind = kind
        self._channel = channel
        self._witness: Witness | None = None
        self._tenure = 0
        self.trusted_until = 0.0
        """Until then (CLOCK_BOOTTIME) what is kept by lease may be served."""
        self.on_lapse: Callable[[], None] = lambda: None
        """Told that others have taken this session's leases away, or that the machine has slept:
        what a kernel may rely on has not aged meanwhile."""
        self.forget: Callable[[], Awaitable[None]] | None = None
        """Awaited after a crash of the database: returns when nothing is kept by lease any more.
        Once more if the connection on which the crash was seen breaks before that."""
        self._id = SessionId(0)
        self._epoch = 0
        self._fenced = False
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        self._sequence = 0
        self._next = self._end = 0
        self._refill_lock = asyncio.Lock()
        self._heart: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ailing: set[str] = set()
        self.oldest_snapshot: Callable[[], float | None] = lambda: None
        """When the oldest snapshot that is still read was taken (monotonic clock); see `hold`."""
        self.tidy: Callable[[], Awaitable[None]] | None = None
        """Lets go of what is held by mistake; costs nothing as a rule."""

    @property
    def id(self) -> SessionId:
        """Number of the session in the database."""
        return self._id

    @property
    def epoch(self) -> int:
        """Generation of the registration; grows with each `register`."""
        return self._epoch

    @property
    def fenced(self) -> bool:
        """True once the database said so; only `register` ends it."""
        return self._fenced

    @property
    def sequence(self) -> int:
        """Number of the last call of this process that had one; see `next_sequence`."""
        return self._sequence

    def next_sequence(self) -> int:
        """A number for a call: above those of all calls before, also of other epochs."""
        self._sequence += 1
        return self._sequence

    def check(self) -> None:
        """Raises Fenced when the session is known to be fenced."""
        if self._fenced:
            raise Fenced

    async def register(self) -> None:
        """Registers a new session and starts its heartbeat. Raises Unavailable."""
        await self._stop_heart()
        if self._channel is not None and self._witness is None:
            with suppress(OSError):  # without it others wait until the session expires
                self._witness = Witness()
        process = None if self._witness is None else self._witness.identity
        began = boottime()
        args = (self._kind, self._epoch + 1, SLOTS, self._channel, self._run, process)
        rows = await self._links.call("register", args)
        self._id = SessionId(rows[0][0])
        self._tenure = 0
        self.trusted_until = began + TRUST
        self._epoch += 1
        # Slots and numbers of calls that still run for the old session are never mixed in: the
        # queue is a new one and each call puts its slot back where it took it.
        self._answered, self._minded, self._failed = {}, {}, {}
        self._slots = asyncio.Queue()
        for slot in range(1, SLOTS + 1):
            self._slots.put_nowait(slot)
        self._fenced = False
        self._heart = asyncio.create_task(self._beat(), name="wrkfs heartbeat")
        if self._channel is not None:
            self._watch = asyncio.create_task(self._watch_sleep(), name="wrkfs sleep")

    async def fence_dead(self) -> None:
        """Fences sessions whose processes were of this host and are dead: nobody waits for them."""
        for session, process in await self._links.call("processes", (self._id,)):
            if is_dead(process):
                await self._links.call("fence", (session, True))

    async def end(self, deadline: float) -> None:
        """Lets go of everything held and ends the session.

        After `deadline` seconds (an outage) the session is left for others to reap.
        """
        await self._stop_heart()
        try:
            if self._epoch == 0 or self._fenced:
                return
            with suppress(Fenced, Doubtful, Unavailable, TimeoutError):
                async with asyncio.timeout(deadline):
                    await self.reclaim(self._id)
                    await self._links.call("fence", (self._id, True))
            self._fenced = True
        finally:
            if self._witness is not None:
                self._witness.close()

    async def mutate(self, name: str, *args: object, minded: bool = True) -> asyncpg.Record:
        """The answer of a mutating function, applied exactly once.

        Not `minded`: it is the sessions' own book-keeping, done anew after a crash of the database
        that undid it (`_survey`); no user is told of a loss.

        Raises Fenced when it was not applied, Doubtful when that is unknown, the WrkfsError of the
        errno it answers, and what `Links.call` raises.
        """
        waits = 0
        until = 0.0
        while True:
            try:
                return await self._mutate(name, args, minded)
            except _RecalledError:
                now = time.monotonic()
                until = until or now + RECALL_WAIT
                if now > until:
                    raise Unavailable("others do not give back what they keep of it") from None
            # Without a slot: those who give leases back here need some as well.
            await asyncio.sleep(_RECALL_PAUSES[min(waits, len(_RECALL_PAUSES) - 1)])
            waits += 1

    async def _mutate(self, name: str, args: tuple[object, ...], minded: bool) -> asyncpg.Record:
        self.check()
        # The slots of a session are its own: who waited for one while the session was replaced
        # still calls for the old one.
        session, epoch, slots, answered = self._id, self._epoch, self._slots, self._answered
        noticed, failed = self._minded, self._failed
        slot = await slots.get() if slots.empty() else slots.get_nowait()
        head = (session, epoch, slot, self.next_sequence())
        try:
            row = await self._apply(name, head, args)
            answered[slot] = head[-1]
            if minded:
                noticed[slot] = head[-1]
            return row
        except _RecalledError:
            raise  # no sending of it is on its way
        except BaseException:
            # A sending of it may still be on its way; also when it was refused, for an earlier
            # sending may have broken. The next call in the slot that is applied ends that.
            failed[slot] = head[-1]
            raise
        finally:
            slots.put_nowait(slot)

    async def give_up(self, slices: list[SliceId], sizes: list[int]) -> None:
        """No call of this session commits these slices any more, unless one has; see the function.

        Unavailable: unknown.
        """
        failed = {
            slot: seq for slot, seq in self._failed.items() if seq > self._answered.get(slot, 0)
        }
        args = (self._id, self._epoch, list(failed), list(failed.values()), slices, sizes)
        await self._links.call("give_up", args)

    async def _apply(
        self, name: str, head: tuple[int, int, int, int], args: tuple[object, ...]
    ) -> asyncpg.Record:
        """Calls a mutating function until it says that it was applied or refused."""
        attempt = waits = 0
        while attempt < _AGAIN_MAX:
            rows, broken = await self._links.tell(name, head + args)
            row = rows[0]
            number = row[0]
            if number == 0:
                return row
            if number == _FENCED:
                self._note_fence(head[1])
                if broken:
                    raise Doubtful("the session was fenced while the answer was lost")
                raise Fenced
            if number == _RECALLED:
                waits += 1
                if not broken:
                    raise _RecalledError
                # An earlier sending may still come: only this slot keeps it from being a second.
                if waits * _RECALL_PAUSES[-1] > RECALL_WAIT:
                    raise Doubtful("others do not give back what they keep of it")
                await asyncio.sleep(_RECALL_PAUSES[-1])
                continue
            if number != _AGAIN:
                raise by_errno(number)
            if attempt > 2:
                await asyncio.sleep(0.001 * attempt)
            attempt += 1
        raise StorageError("entries change faster than they can be read")

    async def fresh_id(self) -> Ino:
        """A number for an inode or a cookie, never given before."""
        while self._next == self._end:
            await self._refill()
        self._next += 1
        return Ino(self._next - 1)

    async def reserve(self, kind: str, count: int) -> int:
        """First of `count` numbers of a kind ('id', 'slice') that are this session's alone."""
        epoch = self._epoch
        first = (await self._links.call("reserve", (self._id, epoch, kind, count)))[0][0]
        if first == _FENCED:
            self._note_fence(epoch)
            raise Fenced
        # The volume's role can write the counter.
        if not isinstance(first, int) or not 0 < first < _NUMBERS_END:
            raise Corrupt(f"counter {kind}")
        return first

    async def reap(self, silence: timedelta, patience: timedelta) -> None:
        """Fences sessions without heartbeat and reclaims what fenced ones held."""
        rows = await self._links.call("reap", (silence, patience))
        for session in rows[0][0]:
            await self.reclaim(SessionId(session))

    async def reclaim(self, owner: SessionId) -> None:
        """Lets go of all that a session (this one, or a fenced one) holds."""
        while (await self.mutate("reclaim", owner, RECLAIM_LIMIT, minded=False))[1]:
            pass

    async def _survey(self, link: Link) -> None:
        """Before a new connection carries calls: has the database crashed, and what is lost?"""
        async with self._survey_lock:
            answered, minded, known = self._answered, self._minded, self._run
            # Taken before the question: calls that are answered meanwhile are no loss.
            expected, noticed = dict(answered), dict(minded)
            args = (self._id, self._epoch, known, self._held())
            row = (await link.fetch("survey", args))[0]
            # Of a session that has been fenced nobody can say what a crash before that undid.
            there = dict(zip(row["slots"] or (), row["seqs"] or (), strict=True))
            undone = [slot for slot, seq in expected.items() if there.get(slot, 0) < seq]
            if known in (None, row["run"]):
                undone = []
            # Commits of one slot become durable in their order.
            lost = any(there.get(slot, 0) < noticed.get(slot, 0) for slot in undone)
            for slot in undone:
                answered[slot] = there.get(slot, 0)
                minded[slot] = min(minded.get(slot, 0), there.get(slot, 0))
            if lost:
                log.error("the database crashed and has lost changes that no fsync had covered")
            if known not in (None, row["run"]):
                self._on_crash(lost)
                if self.forget is not None:
                    await self.forget()
                    # Others need not wait for this session to notice.
                    await link.fetch("heartbeat", (self._id, self._epoch, self._age, row["run"]))
            # Not before: who is stopped in between begins again with the next connection.
            self._run = row["run"]
            for _ in range(_SURVEY_MAX):
                if not row["cached"]:
                    break
                # A change now could make untrue what others still serve.
                await asyncio.sleep(_SURVEY_PAUSE)
                row = (await link.fetch("survey", (self._id, self._epoch, self._run, [])))[0]

    async def _refill(self) -> None:
        async with self._refill_lock:
            if self._next == self._end:
                self._next = await self.reserve("id", _NUMBERS)
                self._end = self._next + _NUMBERS

    def _note_fence(self, epoch: int) -> None:
        """The database refused a session; it may have been replaced meanwhile."""
        if epoch == self._epoch:
            self._fenced = True

    async def _beat(self) -> None:
        """Ends only when the session is fenced: the heart of a live one never stops."""
        beats = 0
        care: asyncio.Task[None] | None = None
        try:
            while not self._fenced:
                await asyncio.sleep(HEARTBEAT)
                beats += 1
                await self._try("heartbeat", self._beat_once)
                due = beats % REAP_EVERY == 0 and not self._fenced
                if due and (care is None or care.done()):
                    # It may wait for leases of others, for longer than a session without heartbeat
                    # lives.
                    care = asyncio.create_task(
                        self._try("care", self._look_after), name="wrkfs care"
                    )
        finally:
            if care is not None:
                care.cancel()
                await asyncio.gather(care, return_exceptions=True)

    async def _try(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """One piece of the heart's work. Its failure is told once, until it succeeds again."""
        try:
            await work()
            self._ailing.discard(what)
        except Fenced:
            self._ailing.discard(what)
        except WrkfsError as error:
            # Calls report what they hit themselves; the session lives on in the database.
            if what not in self._ailing:
                log.warning("the %s of session %d fails: %s", what, self._id, error)
            self._ailing.add(what)

    async def _look_after(self) -> None:
        if self.tidy is not None:
            await self.tidy()
        await self.reap(SILENCE, PATIENCE)

    async def _beat_once(self) -> None:
        began, epoch = boottime(), self._epoch
        rows = await self._links.call("heartbeat", (self._id, epoch, self._age, self._run))
        tenure = rows[0][0]
        if tenure is None:
            self._fenced = True
            raise Fenced
        if tenure != self._tenure:
            self._tenure = tenure
            self.on_lapse()
        self.trusted_until = began + TRUST

    async def _watch_sleep(self) -> None:
        sleep = Sleep(time.monotonic, lambda: boottime())
        while True:
            await asyncio.sleep(TICK)
            if sleep.has_been():
                self.on_lapse()

    @property
    def _age(self) -> timedelta | None:
        oldest = self.oldest_snapshot()
        return None if oldest is None else timedelta(seconds=time.monotonic() - oldest)

    async def _stop_heart(self) -> None:
        tasks = [task for task in (self._heart, self._watch) if task is not None]
        self._heart = self._watch = None
        for task in tasks:
            task.cancel()
        # What they ended with is no matter of who stops them.
        await asyncio.gather(*tasks, return_exceptions=True)
