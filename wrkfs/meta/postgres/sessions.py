"""The registration of one mount: slots, number ranges, heartbeat. Rules: schema.sql, SESSIONS."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, Doubtful, Fenced, StorageError, Unavailable, WrkfsError, by_errno
from wrkfs.meta.interface.lease_times import HEARTBEAT, RECALL_WAIT, TRUST
from wrkfs.meta.postgres.hosts import Witness, is_dead
from wrkfs.meta.postgres.sleep import TICK, Sleep
from wrkfs.types import Ino, SessionId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    import asyncpg

    from wrkfs.meta.postgres.links import Link, Links
    from wrkfs.types import SliceId

log = logging.getLogger(__name__)

BATCH_SLOT = 0
"""Slot of the batches of changes under delegations."""
SLOTS = 16
"""Maximum number of mutating calls in flight; further calls wait. Each slot is a row that statfs
sums."""
REAP_EVERY = 5
"""Heartbeats between two checks for stray rows and for dead sessions."""
SILENCE = timedelta(seconds=90)
"""Time without heartbeats after which a session becomes suspect. It is above the longest outage
(60 s) that may only cost latency."""
PATIENCE = timedelta(seconds=6)
"""Time that a suspect session has for a heartbeat."""
RECLAIM_LIMIT = 2000
"""Maximum number of inodes that one call releases, so that no call takes long."""
CLOSE_DEADLINE = 10.0
"""Seconds for ending a session in the database. After that, other sessions reap it."""

_NUMBERS = 4096
_NUMBERS_END = 1 << 62
_FENCED = -1
_AGAIN = 11
_RECALLED = -2
_AGAIN_MAX = 60
_RECALL_PAUSES = (0.0004, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Seconds between two checks whether the leases have been given back; the last one repeats."""
_FENCE_EVERY = 25
"""Checks between two attempts to fence holders of delegations that have expired."""
_SURVEY_PAUSE = 0.1
_SURVEY_MAX = 70


class _RecalledError(Exception):
    """The call recalled leases of other sessions and changed nothing."""


def boottime() -> float:
    """Return seconds on a clock that also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class MountSession:
    """One registered session.

    Critical sections: a slot belongs to one call of `mutate` with all its repetitions. The range of
    numbers changes without an await, except under `_refill_lock`. A new connection carries calls
    only after `_survey`, one at a time, has compared the state of the database with the answers so
    far. So after a crash, no call is answered before the session knows about the crash.
    """

    def __init__(
        self,
        links: Links,
        kind: str,
        held: Callable[[], list[Ino]] = list,
        on_crash: Callable[[bool], None] = lambda _: None,
        channel: str | None = None,
        *,
        delegates: bool = False,
    ) -> None:
        """`held` returns the open inodes. `delegates` permits write delegations.

        `on_crash` is called after a crash of the database, with True if the crash has undone
        changes that the database had answered. `channel` is the channel for recalls; a session
        without one takes no leases.
        """
        self._links = links
        self._held = held
        self._on_crash = on_crash
        self._answered: dict[int, int] = {}
        self._last_changes: dict[int, int] = {}
        """The last answered call of each slot whose loss a user would notice."""
        self._failed: dict[int, int] = {}
        self._run: datetime | None = None
        self._survey_lock = asyncio.Lock()
        links.greet = self._survey
        self._kind = kind
        self._channel = channel
        self.delegates = delegates
        self.kept = False
        """True if `end` leaves the session in the database."""
        self.rescue: Callable[[], Awaitable[object]] | None = None
        """Awaited while a holder does not answer: its process on this host may be dead."""
        self._witness: Witness | None = None
        self._tenure = 0
        self.trusted_until = 0.0
        """Deadline (CLOCK_BOOTTIME, seconds) until which a cache under leases may be served."""
        self.on_lapse: Callable[[], None] = lambda: None
        """Called after other sessions revoked this session's leases, or after the machine slept.
        During sleep, the validities that a kernel was given do not run out."""
        self.forget: Callable[[], Awaitable[None]] | None = None
        """Awaited after a crash of the database; returns when nothing is cached under leases. It is
        awaited again if the connection that discovered the crash breaks before that."""
        self.restore: Callable[[Link], Awaitable[None]] | None = None
        """Awaited after a crash of the database, with the new connection: it states the locks of
        this session again. Other sessions wait for it, as they wait for `forget`."""
        self._id = SessionId(0)
        self._epoch = 0
        self._fenced = False
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        self._sequence = 0
        self._next = self._end = 0
        self._refill_lock = asyncio.Lock()
        self._heartbeat: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._failing: set[str] = set()
        self.oldest_snapshot: Callable[[], float | None] = lambda: None
        """Returns the time of the oldest snapshot in use (monotonic clock); see `Holds`."""
        self.tidy: Callable[[], Awaitable[None]] | None = None
        """Releases rows without handles. Usually there are none, and the call costs nothing."""

    @property
    def id(self) -> SessionId:
        """Number of the session in the database."""
        return self._id

    @property
    def epoch(self) -> int:
        """Generation of the registration; each `register` increases it."""
        return self._epoch

    @property
    def fenced(self) -> bool:
        """True after the database has rejected the session, until `register`."""
        return self._fenced

    @property
    def sequence(self) -> int:
        """The last number that `next_sequence` returned."""
        return self._sequence

    def next_sequence(self) -> int:
        """Return a number for a call, above the numbers of all earlier calls of any epoch."""
        self._sequence += 1
        return self._sequence

    def check(self) -> None:
        """Raise Fenced if the session is known to be fenced."""
        if self._fenced:
            raise Fenced

    async def register(self) -> None:
        """Register a new session and start its heartbeat. Raises Unavailable."""
        await self._stop_heartbeat()
        if self._channel is not None and self._witness is None:
            with suppress(OSError):  # without a witness, other sessions wait for the expiry
                self._witness = Witness()
        process = None if self._witness is None else self._witness.identity
        began = boottime()
        who = (self._kind, self._epoch + 1, SLOTS, self._channel)
        rows = await self._links.call("register", (*who, self._run, process, self.delegates))
        self._id = SessionId(rows[0][0])
        self._tenure = 0
        self.trusted_until = began + TRUST
        self._epoch += 1
        # The old session's calls may still run. They return their slots to the old queue, so the
        # slots and numbers of two sessions never mix.
        self._answered, self._last_changes, self._failed = {}, {}, {}
        self._slots = asyncio.Queue()
        for slot in range(1, SLOTS + 1):
            self._slots.put_nowait(slot)
        self._fenced = False
        self._heartbeat = asyncio.create_task(self._beat(), name="wrkfs heartbeat")
        if self._channel is not None:
            self._watch = asyncio.create_task(self._watch_sleep(), name="wrkfs sleep")

    async def processes(self) -> list[tuple[SessionId, str]]:
        """Return the sessions that state their process.

        A session without delegations leaves those that may have a journal to the next one with.
        """
        rows = await self._links.call("processes", (self._id, self.delegates))
        return [(SessionId(session), process) for session, process in rows]

    async def fence_dead(
        self, processes: list[tuple[SessionId, str]], busy: set[SessionId]
    ) -> None:
        """Fence sessions of dead processes of this host, so that no session waits for them.

        Other processes replay the journals of `busy`, and then fence these sessions. `processes`
        is older than `busy`: a session that began later may have a new journal.
        """
        for session, process in processes:
            if session not in busy and is_dead(process):
                await self._links.call("fence", (session, True))

    async def end(self, deadline: float) -> None:
        """Release all files and end the session.

        After `deadline` seconds (an outage), other sessions must reap this one.
        """
        await self._stop_heartbeat()
        try:
            if self._epoch == 0 or self._fenced or self.kept:
                return
            with suppress(Fenced, Doubtful, Unavailable, TimeoutError):
                async with asyncio.timeout(deadline):
                    await self.reclaim(self._id)
                    await self._links.call("fence", (self._id, True))
            self._fenced = True
        finally:
            if self._witness is not None:
                self._witness.close()

    async def mutate(self, name: str, *args: object, is_change: bool = True) -> asyncpg.Record:
        """Call a mutating function, which takes effect exactly once, and return its answer.

        Without `is_change` the call is book-keeping of the session. If a crash of the database
        undoes it, the session repeats it (`_survey`), and no user sees a loss.

        Raises Fenced if the call had no effect, Doubtful if that is unknown, the WrkfsError of the
        errno in the answer, and the errors of `Links.call`.
        """
        waits = 0
        until = 0.0
        while True:
            try:
                return await self._mutate(name, args, is_change)
            except _RecalledError:
                now = time.monotonic()
                until = until or now + RECALL_WAIT
                if now > until:
                    raise Unavailable(
                        "other sessions do not return their leases; try again"
                    ) from None
            # This call has returned its slot, because giving leases back needs slots as well.
            if waits % _FENCE_EVERY == _FENCE_EVERY - 1:
                if self.rescue is not None:
                    await self.rescue()
                await self._links.call("fence_holders", (self._id,))
            await asyncio.sleep(_RECALL_PAUSES[min(waits, len(_RECALL_PAUSES) - 1)])
            waits += 1

    async def _mutate(self, name: str, args: tuple[object, ...], is_change: bool) -> asyncpg.Record:
        self.check()
        # Slots belong to one session. If the session is replaced while this call waits for a slot,
        # the call still belongs to the old session.
        session, epoch, slots, answered = self._id, self._epoch, self._slots, self._answered
        changes, failed = self._last_changes, self._failed
        slot = await slots.get() if slots.empty() else slots.get_nowait()
        head = (session, epoch, slot, self.next_sequence())
        try:
            row = await self._apply(name, head, args)
            answered[slot] = head[-1]
            if is_change:
                changes[slot] = head[-1]
            return row
        except _RecalledError:
            raise  # no copy of the call is on its way
        except BaseException:
            # A copy of the call may still be on its way, even after a refusal, because an earlier
            # attempt may have broken. The next call that takes effect in this slot excludes it.
            failed[slot] = head[-1]
            raise
        finally:
            slots.put_nowait(slot)

    async def apply_batch(self, seq: int, args: tuple[object, ...]) -> None:
        """Apply a batch of changes (`Delegations.apply`); one call runs at a time."""
        self.check()
        await self.apply_for((self._id, self._epoch, BATCH_SLOT, seq), args)

    async def apply_for(self, head: tuple[int, int, int, int], args: tuple[object, ...]) -> None:
        """Apply a batch of any session."""
        await self._apply("apply", head, args)

    async def give_up(self, slices: list[SliceId], sizes: list[int]) -> None:
        """Ensure that no call of this session commits these slices, unless one already has.

        Raises Unavailable if the outcome is unknown. See the SQL function `give_up`.
        """
        failed = {
            slot: seq for slot, seq in self._failed.items() if seq > self._answered.get(slot, 0)
        }
        args = (self._id, self._epoch, list(failed), list(failed.values()), slices, sizes)
        await self._links.call("give_up", args)

    async def _apply(
        self, name: str, head: tuple[int, int, int, int], args: tuple[object, ...]
    ) -> asyncpg.Record:
        """Call a mutating function until the database has applied or refused it."""
        attempt = waits = 0
        while attempt < _AGAIN_MAX:
            rows, broken = await self._links.tell(name, head + args)
            row = rows[0]
            number = row[0]
            if number == 0:
                return row
            if number == _FENCED:
                if head[0] == self._id:
                    self._note_fence(head[1])
                if broken:
                    raise Doubtful("the session was fenced while the answer was lost")
                raise Fenced
            if number == _RECALLED:
                waits += 1
                if not broken:
                    raise _RecalledError
                # A broken attempt may still arrive. Only the same slot prevents a second effect.
                if waits * _RECALL_PAUSES[-1] > RECALL_WAIT:
                    raise Doubtful("other sessions do not return their leases; try again")
                await asyncio.sleep(_RECALL_PAUSES[-1])
                continue
            if number != _AGAIN:
                raise by_errno(number)
            if attempt > 2:
                await asyncio.sleep(0.001 * attempt)
            attempt += 1
        raise StorageError(f"directory entries changed during {_AGAIN_MAX} attempts; try again")

    async def fresh_id(self) -> Ino:
        """Return a number for an inode or a cookie; numbers are never reused."""
        while self._next == self._end:
            await self._refill()
        self._next += 1
        return Ino(self._next - 1)

    async def reserve(self, kind: str, count: int) -> int:
        """Reserve `count` numbers of a kind ('id', 'slice') for this session; return the first."""
        epoch = self._epoch
        first = (await self._links.call("reserve", (self._id, epoch, kind, count)))[0][0]
        if first == _FENCED:
            self._note_fence(epoch)
            raise Fenced
        # The role of the volume can write any number into the counter.
        if not isinstance(first, int) or not 0 < first < _NUMBERS_END:
            raise Corrupt(f"counter of kind {kind!r}")
        return first

    async def reap(self, silence: timedelta, patience: timedelta) -> None:
        """Fence sessions without heartbeats and release the files of fenced ones."""
        rows = await self._links.call("reap", (silence, patience))
        for session in rows[0][0]:
            await self.reclaim(SessionId(session))

    async def reclaim(self, owner: SessionId) -> None:
        """Release all files of a session: of this one or of a fenced one."""
        while (await self.mutate("reclaim", owner, RECLAIM_LIMIT, is_change=False))[1]:
            pass

    async def _survey(self, link: Link) -> None:
        """Check on a new connection whether the database has crashed and lost changes."""
        async with self._survey_lock:
            answered, changes, known_run = self._answered, self._last_changes, self._run
            # Copied before the query, because calls that are answered meanwhile are not lost.
            expected, expected_changes = dict(answered), dict(changes)
            args = (self._id, self._epoch, known_run, self._held())
            row = (await link.fetch("survey", args))[0]
            # For a fenced session it is unknown what an earlier crash has undone.
            there = dict(zip(row["slots"] or (), row["seqs"] or (), strict=True))
            undone = [slot for slot, seq in expected.items() if there.get(slot, 0) < seq]
            if known_run in (None, row["run"]):
                undone = []
            # Commits in one slot become durable in order.
            has_loss = any(there.get(slot, 0) < expected_changes.get(slot, 0) for slot in undone)
            for slot in undone:
                answered[slot] = there.get(slot, 0)
                changes[slot] = min(changes.get(slot, 0), there.get(slot, 0))
            if has_loss:
                log.error("the database crashed and lost changes that no fsync had covered")
            if known_run not in (None, row["run"]):
                self._on_crash(has_loss)
                if self.restore is not None:
                    await self.restore(link)
                if self.forget is not None:
                    await self.forget()
                    # So other sessions need not wait until this one finds out.
                    await link.fetch("heartbeat", (self._id, self._epoch, self._age, row["run"]))
            # Only now: if this method is cancelled earlier, the next connection starts again.
            self._run = row["run"]
            for _ in range(_SURVEY_MAX):
                if not row["cached"]:
                    break
                # Other sessions still serve their caches, and a change now could contradict them.
                await asyncio.sleep(_SURVEY_PAUSE)
                row = (await link.fetch("survey", (self._id, self._epoch, self._run, [])))[0]

    async def _refill(self) -> None:
        async with self._refill_lock:
            if self._next == self._end:
                self._next = await self.reserve("id", _NUMBERS)
                self._end = self._next + _NUMBERS

    def _note_fence(self, epoch: int) -> None:
        """Record that the database rejected the session of an epoch, if it is the current one."""
        if epoch == self._epoch:
            self._fenced = True

    async def _beat(self) -> None:
        """Send heartbeats until the session is fenced."""
        beats = 0
        reaping: asyncio.Task[None] | None = None
        try:
            while not self._fenced:
                await asyncio.sleep(HEARTBEAT)
                beats += 1
                await self._try("heartbeat", self._beat_once)
                due = beats % REAP_EVERY == 0 and not self._fenced
                if due and (reaping is None or reaping.done()):
                    # A task of its own, because it may wait for leases of other sessions, longer
                    # than a session without heartbeats lives.
                    reaping = asyncio.create_task(
                        self._try("cleanup", self._reap_sessions), name="wrkfs cleanup"
                    )
        finally:
            if reaping is not None:
                reaping.cancel()
                await asyncio.gather(reaping, return_exceptions=True)

    async def _try(self, part: str, call: Callable[[], Awaitable[None]]) -> None:
        """Run one part of the heartbeat's work; log a failure once, until the part succeeds."""
        try:
            await call()
            self._failing.discard(part)
        except Fenced:
            self._failing.discard(part)
        except WrkfsError as error:
            # Calls report their own errors, and the session continues in the database.
            if part not in self._failing:
                log.warning("the %s of session %d fails: %s", part, self._id, error)
            self._failing.add(part)

    async def _reap_sessions(self) -> None:
        if self.tidy is not None:
            await self.tidy()
        if self.rescue is not None:
            await self.rescue()
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

    async def _stop_heartbeat(self) -> None:
        tasks = [task for task in (self._heartbeat, self._watch) if task is not None]
        self._heartbeat = self._watch = None
        for task in tasks:
            task.cancel()
        # The results of the stopped tasks do not matter.
        await asyncio.gather(*tasks, return_exceptions=True)
