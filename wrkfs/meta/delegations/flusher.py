"""Sends the changes that a session decided: in order, in batches, until the database has them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from wrkfs.errors import Doubtful, Fenced, NoSpace, StorageError, Unavailable, WrkfsError
from wrkfs.meta.delegations.delta import Delta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wrkfs.meta.delegations.delta import Record
    from wrkfs.meta.delegations.journal import Journal
    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.types import Ino

log = logging.getLogger(__name__)

DELAY = 0.1
"""Seconds for which changes are collected."""
HEAVY = 8192
"""Weight of a delta that is sent at once: about 8 MiB, or some thousand changes."""
FULL = 4 * HEAVY
"""Weight at which changes wait until the database has taken a batch."""
RETRY = 1.0
"""Seconds before a batch is sent again after an outage."""
_NAMES = 20
"""Maximum number of lost names in a message."""


class Batch:
    """A delta with the directories to give back, and the callers that wait for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.delta = Delta()
        self.release: set[Ino] = set()
        self.urgent = asyncio.Event()
        self.waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        return bool(self.delta or self.release)

    def wait(self) -> asyncio.Future[None]:
        """Return a future that ends when the database has applied the batch, or with an error."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        self.urgent.set()
        return waiter

    def end(self, error: WrkfsError | None = None) -> None:
        """Wake the waiting callers."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)


class Flusher:
    """The unsent changes of one session.

    Critical sections: a change enters the journal and the delta in one step (`record`). One batch
    is on its way at a time. A batch leaves `_sending` when the database has applied it, or when it
    is lost; then `on_loss` has been called.
    """

    def __init__(self, inner: DelegationStore) -> None:
        self.on_loss: Callable[[WrkfsError], None] = lambda _: None
        """Called when answered changes are lost, after the flusher has dropped them."""
        self.room: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Returns bytes and inodes that the session still needs of its reservation."""
        self.sent = 0
        """Number of batches that the database has applied."""
        self._inner = inner
        self._journal: Journal | None = None
        self._number = self._applied = 0
        self._open = Batch(0)
        self._sending: Batch | None = None
        self._wake = asyncio.Event()
        self._ended = False
        """True after the session was fenced, until `start`."""
        self._task: asyncio.Task[None] | None = None

    def start(self, journal: Journal | None) -> None:
        """Start sending for a new registration, whose journal has begun with batch 1.

        Without a journal no change is decided here, and only delegations are given back.
        """
        self._journal = journal
        self._number = 1
        self._applied = 0
        self._open = Batch(1)
        self._ended = False
        self._task = asyncio.create_task(self._run(), name="wrkfs flusher")

    async def stop(self) -> None:
        """Stop sending. The journal keeps what the database has not applied."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._open.end(Unavailable("the session is closed"))
        if self._sending is not None:
            self._sending.end(Unavailable("the session is closed"))

    def close_journal(self) -> None:
        """Delete the journal if the database has applied everything; else keep its files."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close(keep=not self.idle)

    @property
    def lacks_journal(self) -> int | None:
        """Return the first batch of a new journal; None if there is one, or it would not help."""
        if self._journal is not None or self._ended or self._task is None:
            return None
        return self._number

    def use_journal(self, journal: Journal) -> None:
        """Record changes from now on; the journal has begun with the number in `lacks_journal`."""
        self._journal = journal

    @property
    def unsent(self) -> int:
        """The weight of the changes that the database has not applied; about their number."""
        sending = 0 if self._sending is None else self._sending.delta.weight
        return self._open.delta.weight + sending

    @property
    def delta(self) -> Delta:
        """The delta that receives changes now."""
        return self._open.delta

    @property
    def can_record(self) -> bool:
        """True if a change may be decided here."""
        return self._journal is not None and not self._ended and self._task is not None

    @property
    def idle(self) -> bool:
        """True if the database has everything."""
        return not self._open.delta and self._sending is None

    def concerns(self, inos: Iterable[Ino]) -> bool:
        """Return True if rows that describe these inodes or their entries are not sent."""
        sending = self._sending.delta.touched if self._sending is not None else ()
        now = self._open.delta.touched
        return any(ino in now or ino in sending for ino in inos)

    def is_new(self, ino: Ino) -> bool:
        """Return True if the database does not have this inode yet."""
        if self._open.delta.is_new(ino):
            return True
        return self._sending is not None and self._sending.delta.is_new(ino)

    def record(self, records: Sequence[Record]) -> None:
        """Add the records of one change. Raises OSError, and adds nothing, without a journal."""
        if self._journal is None:
            raise OSError("the journal is closed")
        self._journal.append(records)
        self._open.delta.replay(records)
        self._wake.set()
        if self._open.delta.weight >= HEAVY:
            self._open.urgent.set()

    def release(self, directories: Iterable[Ino]) -> None:
        """End the delegations of directories with the next batch."""
        self._open.release.update(directories)

    def is_releasing(self, directory: Ino) -> bool:
        """Return True if a batch that the database lacks ends the delegation of a directory."""
        if directory in self._open.release:
            return True
        return self._sending is not None and directory in self._sending.release

    def send_now(self) -> None:
        """Send what there is, without waiting for more."""
        self._open.urgent.set()
        self._wake.set()

    async def flush(self) -> bool:
        """Return when the database has applied every change and release so far.

        Returns False if there were none. Raises Unavailable, or the error that lost the changes.
        """
        batch = self._open if self._open else self._sending
        if batch is None or self._task is None:
            return False
        waiter = batch.wait()
        self._wake.set()
        await waiter
        return True

    async def make_room(self) -> None:
        """Wait until the delta has room for a change."""
        if self._open.delta.weight >= FULL:
            await self.flush()

    # -- internal --

    async def _run(self) -> None:
        while True:
            try:
                await self._send_all()
            except Exception as error:
                log.exception("the sender of changes failed; it goes on with later changes")
                self._lose(StorageError(f"sending failed: {type(error).__name__}"))

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._open:
                with suppress(TimeoutError):
                    async with asyncio.timeout(DELAY):
                        await self._open.urgent.wait()
                await self._send()

    async def _send(self) -> None:
        batch = self._sending = self._open
        self._number += 1
        self._open = Batch(self._number)
        self._begin(self._number)
        batch.delta.room = self.room()
        while True:
            try:
                await self._inner.apply(batch.number, batch.delta, list(batch.release))
            except (Unavailable, NoSpace) as error:
                log.warning("cannot send changes of the drive: %s; trying again", error)
                batch.end(error)
                self._open.end(error)
                await asyncio.sleep(RETRY)
            except WrkfsError as error:
                self._lose(error)
                return
            else:
                break
        self.sent += 1
        self._sending = None
        self._applied = batch.number
        self._drop(batch.number)
        batch.end()

    def _begin(self, number: int, *, after: int | None = None) -> None:
        """Start the journal of a batch; until that succeeds, no change is decided here."""
        if self._journal is not None:
            try:
                self._journal.begin(number, after=after)
            except OSError as error:
                log.error("cannot write the journal, so changes are not delayed now: %s", error)

    def _drop(self, number: int) -> None:
        """Delete the journal of a batch; a replay ignores what the database has."""
        if self._journal is not None:
            try:
                self._journal.drop(number)
            except OSError as error:
                log.error("cannot delete the journal of a batch: %s", error)

    def lose(self) -> None:
        """Drop all changes: the session is over."""
        self._ended = True
        if self._open.delta or self._sending is not None:
            self._lose(Fenced("the session expired before these changes were sent"))

    def _lose(self, error: WrkfsError) -> None:
        batches = [batch for batch in (self._sending, self._open) if batch is not None]
        if not any(batch.delta for batch in batches):
            self._fail_release(batches, error)
            return
        names = [name for batch in batches for name in batch.delta.names]
        place = self._keep_lost()
        examples = ", ".join(repr(name.decode(errors="replace")) for name in names[:_NAMES])
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        log.error("lost changes of %s%s: %s; they are kept in %s", examples, more, error, place)
        self._sending = None
        self._number += 1
        self._open = Batch(self._number)
        self._begin(self._number, after=self._applied)
        # The outcome of the batch may be unknown.
        over = isinstance(error, Fenced | Doubtful)
        if not over:
            # The directories whose delegations should end are still delegated.
            self._open.release.update(*(batch.release for batch in batches))
        self._ended = self._ended or over
        loss = error if over else StorageError(str(error))
        for batch in batches:
            batch.end(loss)
            self._drop(batch.number)
        # The waiting callers continue after this step.
        self.on_loss(loss)

    def _fail_release(self, batches: list[Batch], error: WrkfsError) -> None:
        """End batches without changes; other sessions ask for these delegations again."""
        log.warning("cannot give delegations back: %s", error)
        self._sending = None
        self._number += 1
        self._open = Batch(self._number)
        self._begin(self._number)
        self._ended = self._ended or isinstance(error, Fenced | Doubtful)
        for batch in batches:
            batch.end(error)
            self._drop(batch.number)

    def _keep_lost(self) -> str:
        """Keep the journal for the operator; return its place, or why there is none."""
        if self._journal is None:
            return "no journal"
        try:
            return str(self._journal.keep_lost())
        except OSError as error:
            return f"no file, because the journal cannot be copied ({error})"
