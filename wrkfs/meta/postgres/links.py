"""A small pool of connections to the metadata database, and calls that survive lost connections.

A call can fail because of a lost connection, a restart, or a conflict that the database asks to
repeat. The pool then sends it again with the same arguments, until its deadline. Mutating functions
recognise a repetition by slot and sequence number, so they apply the call once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from wrkfs.errors import InvalidArgument, NoSpace, StorageError, Unavailable, WrkfsError
from wrkfs.meta.postgres.addresses import addresses, knock
from wrkfs.meta.postgres.statements import SERVER_SETTINGS, STATEMENTS
from wrkfs.outage_probe import SUSPECT, OutageProbe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from asyncpg.prepared_stmt import PreparedStatement

    from wrkfs.config import VolumeConfig

Rows: TypeAlias = "list[asyncpg.Record]"
WatchCall: TypeAlias = "Callable[[str], AbstractContextManager[object]]"
"""Returns a context for a call of the metadata database, given the name of its statement."""

DEADLINE = 60.0
"""Seconds after which a call raises Unavailable."""
ATTEMPT = 15.0
"""Seconds after which one attempt counts as lost (a black hole in the network)."""
CONNECT = 8.0
"""Timeout of a connection attempt in seconds."""
_WATCH = 0.5
"""Seconds between two checks of the calls in flight."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0

_LOST = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server ended the connection while the link was idle
)
"""Errors that asyncpg raises for a connection that has ended."""
_CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.QueryCanceledError,  # an administrator canceled it; the call was undone
    asyncpg.OutOfMemoryError,  # the server is out of memory at the moment
)
"""Errors of one call that the same connection may repeat."""
_REPEAT = (
    *_CONFLICT,
    OSError,  # also TimeoutError
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby: wait for promotion, or try another address
    asyncpg.InvalidCachedStatementError,  # another release replaced the functions
    asyncpg.InvalidSchemaNameError,  # a migration has removed the functions for now
)

_FULL_ROLE = (
    "metadata database: the volume's role has no connection left (SQLSTATE 53300); "
    "unmount the drive where it is not in use, or raise the role's CONNECTION LIMIT"
)
_FULL_SERVER = (
    "metadata database: the server or the database has no connection left (SQLSTATE 53300); "
    "end idle clients of PostgreSQL, or raise max_connections"
)
_CAUSES_MAX = 8
"""Maximum length of the chain of causes that is searched."""


_UNWATCHED: AbstractContextManager[None] = nullcontext()


def unwatched(_name: str) -> AbstractContextManager[None]:
    """Return a context that does nothing."""
    return _UNWATCHED


class CallCount:
    """Counts calls of the metadata database before it passes them to another `WatchCall`."""

    def __init__(self, inner: WatchCall) -> None:
        self.total = 0
        self._inner = inner

    def __call__(self, name: str) -> AbstractContextManager[object]:
        """Count a call."""
        self.total += 1
        return self._inner(name)


def _translated(error: asyncpg.PostgresError) -> WrkfsError:
    """Translate an error that a repetition cannot cure."""
    if isinstance(error, asyncpg.DiskFullError):
        return NoSpace("metadata database")
    # asyncpg raises DataError itself, before sending; errors of the server are its subclasses.
    if type(error) is asyncpg.DataError:
        return InvalidArgument("value out of range")
    if isinstance(error, asyncpg.UniqueViolationError):
        return InvalidArgument("the number has already been used")
    # The rows were not written by the functions of the drive, or the role has lost rights. The
    # message has only the code, because the text of the error may quote names of files.
    return StorageError(f"metadata database refused the call: SQLSTATE {error.sqlstate}")


def _cause(error: BaseException) -> str:
    """Return why the database is unavailable and what to do, without its own text (as above)."""
    reason: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(reason, asyncpg.TooManyConnectionsError):
            return _FULL_ROLE if "for role" in str(reason) else _FULL_SERVER
        reason = None if reason is None else reason.__cause__
    return "metadata database"


class Link:
    """One connection. Its current call began at `since` and counts as lost after `until`.

    Both are seconds on the clock of the event loop.
    """

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.since = self.until = 0.0
        self._statements: dict[str, PreparedStatement] = {}

    async def fetch(self, name: str, args: tuple[object, ...]) -> Rows:
        """Return the rows of statement `name`; its first use on this connection prepares it.

        Preparing all statements at once would cost a new connection thirty round trips. At 500 ms
        each, that exceeds any sensible timeout.
        """
        statement = self._statements.get(name)
        if statement is None:
            statement = await self.connection.prepare(STATEMENTS[name], name=name)
            self._statements[name] = statement
        rows: Rows = await statement.fetch(*args)
        return rows


class Links:
    """A pool of at most `size` connections, opened on demand.

    Critical sections: a link is in `_idle` or belongs to one call; `_idle`, `_busy` and `_room`
    change together without an await in between. Several calls run at once, one per link.

    One timer checks all calls in flight. A timer for each call would cost 4 us of the 60 us that a
    call takes.
    """

    def __init__(
        self, config: VolumeConfig, size: int, deadline: float = DEADLINE, *, durable: bool = False
    ) -> None:
        """With `durable`, every answered change survives a crash of the database."""
        self.watch_call: WatchCall = unwatched
        """Each call runs in its context."""
        self._deadline = deadline
        self._addresses = addresses(config.meta_dsn)
        self._preferred = 0
        self._settings = {**SERVER_SETTINGS, "search_path": f'"{config.schema}"'}
        if durable:
            self._settings["synchronous_commit"] = "on"
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._connecting: dict[asyncio.Timeout, float] = {}
        self._outage_probe = OutageProbe(self._probe, self._waiting, self._cut)
        self._room = size
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False
        self.greet: Callable[[Link], Awaitable[None]] | None = None
        """Awaited with each new connection before the pool uses it for calls."""

    async def call(
        self, name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> Rows:
        """Return the rows of statement `name`.

        Raises Unavailable after `deadline` seconds (default: the deadline of the pool), NoSpace,
        InvalidArgument, and StorageError for errors that a repetition cannot cure.
        """
        return (await self.tell(name, args, deadline))[0]

    async def tell(
        self, name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> tuple[Rows, bool]:
        """Return the rows as `call` does, and whether an earlier attempt broke.

        A broken attempt may have been applied.
        """
        with self.watch_call(name):
            return await self._tell(name, args, self._deadline if deadline is None else deadline)

    async def _tell(
        self, name: str, args: tuple[object, ...], deadline: float
    ) -> tuple[Rows, bool]:
        until = asyncio.get_running_loop().time() + deadline
        pause = _FIRST_PAUSE
        broken = False
        while True:
            try:
                return await self._attempt(name, args, until), broken
            except _REPEAT as error:
                time_left = until - asyncio.get_running_loop().time()
                if time_left <= pause or self._closed:
                    raise Unavailable(_cause(error)) from error
                broken = True
            except asyncpg.PostgresError as error:
                raise _translated(error) from None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 jitter only
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def open_dedicated(self) -> asyncpg.Connection:
        """Open a connection outside the pool, which the caller closes.

        Raises OSError and the errors of asyncpg.
        """
        async with asyncio.timeout(CONNECT):
            return await self._open()

    async def close(self) -> None:
        """Close all idle connections; calls in flight close theirs. Idempotent."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        await self._outage_probe.close()
        while self._idle:
            connection = self._idle.pop().connection
            try:
                await connection.close(timeout=CONNECT)
            except (OSError, asyncpg.PostgresError, *_LOST):
                connection.terminate()

    async def _attempt(self, name: str, args: tuple[object, ...], until: float) -> Rows:
        """Send a call once; a link that failed is never used again."""
        if self._closed:
            raise Unavailable("the session is closed")
        link = self._idle.pop() if self._idle else await self._take(until)
        link.since = asyncio.get_running_loop().time()
        link.until = min(until, link.since + ATTEMPT)
        self._busy.add(link)
        healthy = False
        try:
            rows = await link.fetch(name, args)
            healthy = True
        except _LOST as error:
            raise ConnectionError("connection lost") from error
        except asyncpg.PostgresError as error:
            # A link to a standby, or with outdated statements, stays useless.
            useless = isinstance(error, _REPEAT) and not isinstance(error, _CONFLICT)
            healthy = not useless and not link.connection.is_closed()
            raise
        finally:
            self._busy.discard(link)
            self._put(link, healthy)
        return rows

    async def _take(self, until: float) -> Link:
        """Return a new link, or the next one that a call puts back."""
        loop = asyncio.get_running_loop()
        if self._watch is None:
            self._watch = loop.call_later(_WATCH, self._end_lost_calls)
        while self._room == 0:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(until):
                    await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
            if self._idle:
                return self._idle.pop()
        self._room -= 1
        try:
            return await self._connect(min(until - loop.time(), CONNECT))
        except BaseException:
            self._room += 1
            self._wake()
            raise

    def _put(self, link: Link, healthy: bool) -> None:
        if healthy and not self._closed:
            self._idle.append(link)
        else:
            link.connection.terminate()
            self._room += 1
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        """Wake one waiting call."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _end_lost_calls(self) -> None:
        """Close connections whose calls have waited too long; `call` sends those again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        suspicious = now - SUSPECT
        for link in list(self._busy):
            if link.until < now:
                link.connection.terminate()
            elif link.since < suspicious:
                self._outage_probe.check()
        if any(since < suspicious for since in self._connecting.values()):
            self._outage_probe.check()
        self._watch = loop.call_later(_WATCH, self._end_lost_calls)

    def _waiting(self) -> bool:
        return bool(self._busy or self._connecting)

    def _cut(self, before: float) -> None:
        """Resend calls that began before the server was lost, because the server is back now."""
        for link in list(self._busy):
            if link.since < before:
                link.connection.terminate()
        now = asyncio.get_running_loop().time()
        for bound, since in self._connecting.items():
            if since < before and not bound.expired():
                bound.reschedule(now)

    async def _probe(self) -> None:
        """Raise if the address in use does not answer; later attempts begin with the next one."""
        try:
            await knock(self._addresses[self._preferred])
        except BaseException:  # includes the timeout of the outage probe
            self._preferred = (self._preferred + 1) % len(self._addresses)
            raise

    async def _connect(self, timeout: float) -> Link:
        """Return a new link after `greet` has accepted it."""
        async with asyncio.timeout(timeout) as bound:
            self._connecting[bound] = asyncio.get_running_loop().time()
            try:
                link = Link(await self._open())
                try:
                    if self.greet is not None:
                        await self.greet(link)
                except _LOST as error:
                    link.connection.terminate()
                    raise ConnectionError("connection lost") from error
                except BaseException:
                    link.connection.terminate()
                    raise
            finally:
                del self._connecting[bound]
        return link

    async def _open(self) -> asyncpg.Connection:
        """Connect to the address that accepts writes, beginning with the last good one."""
        error: Exception | None = None
        count = len(self._addresses)
        first = self._preferred
        for number in (*range(first, count), *range(first)):
            try:
                async with asyncio.timeout(CONNECT / count):
                    connection = await asyncpg.connect(
                        self._addresses[number],
                        server_settings=self._settings,
                        statement_cache_size=0,
                        target_session_attrs=SessionAttribute.read_write,
                    )
            except (*_REPEAT, *_LOST) as problem:
                error = problem
            else:
                self._preferred = number
                return connection
        raise ConnectionError("no address of the database accepts connections") from error
