"""Connections to the metadata database: a small pool, and calls that outlive lost connections.

A call that fails because of a lost connection, a restart, or a conflict that the database asks to
repeat is sent again, with the same arguments, until one deadline. Mutating functions recognise a
repetition by their slot and sequence number, so it is applied once.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from wrkfs.errors import InvalidArgument, NoSpace, StorageError, Unavailable, WrkfsError
from wrkfs.meta.addresses import addresses, knock
from wrkfs.meta.statements import SERVER_SETTINGS, STATEMENTS
from wrkfs.pulse import SUSPECT, Pulse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg.prepared_stmt import PreparedStatement

    from wrkfs.config import VolumeConfig

Rows: TypeAlias = "list[asyncpg.Record]"

DEADLINE = 60.0
"""Seconds after which a call gives up with Unavailable."""
ATTEMPT = 15.0
"""Seconds after which one sending counts as lost (a black hole in the network)."""
CONNECT = 8.0
"""Seconds for making a connection."""
_WATCH = 0.5
"""Seconds between two looks at calls in flight."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0

_LOST = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server's farewell arrived while the link was idle
)
"""What asyncpg says of a connection that has ended."""
_CONFLICT = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.QueryCanceledError,  # by who looks after the server; the call was undone
    asyncpg.OutOfMemoryError,  # of the server, at the moment
)
"""Refusals of one call that the same connection may repeat."""
_REPEAT = (
    *_CONFLICT,
    OSError,  # also TimeoutError
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby; its promotion or another address follows
    asyncpg.InvalidCachedStatementError,  # the functions were replaced by another release
    asyncpg.InvalidSchemaNameError,  # they are away while tables are migrated
)


def _translated(error: asyncpg.PostgresError) -> WrkfsError:
    """What a refusal that no repetition cures means."""
    if isinstance(error, asyncpg.DiskFullError):
        return NoSpace("metadata database")
    # DataError itself is asyncpg's, before sending; the server's errors are its subclasses.
    if type(error) is asyncpg.DataError:
        return InvalidArgument("value out of range")
    if isinstance(error, asyncpg.UniqueViolationError):
        return InvalidArgument("a number was used before")
    # Rows that no function of ours writes, or rights taken away. Only the code: the text may
    # quote names.
    return StorageError(f"metadata database refused: {error.sqlstate}")


class Link:
    """One connection. Its present call began at `since` and counts as lost from `until` on, both
    on the loop's clock."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.since = self.until = 0.0
        self._statements: dict[str, PreparedStatement] = {}

    async def fetch(self, name: str, args: tuple[object, ...]) -> Rows:
        """Rows that statement `name` answers; its first use here prepares it.

        Preparing all at once would make a new connection cost thirty round trips, which a network
        of 500 ms does not allow within any sensible bound.
        """
        statement = self._statements.get(name)
        if statement is None:
            statement = await self.connection.prepare(STATEMENTS[name], name=name)
            self._statements[name] = statement
        rows: Rows = await statement.fetch(*args)
        return rows


class Links:
    """At most `size` connections, made when needed.

    Critical sections: a link is in `_idle` or belongs to one call; `_idle`, `_busy` and `_room`
    change together, without an await in between. Several calls run at once, one per link.

    One timer looks after all calls in flight, because a timer per call costs 4 us of its 60.
    """

    def __init__(self, config: VolumeConfig, size: int, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._addresses = addresses(config.meta_dsn)
        self._preferred = 0
        self._settings = {**SERVER_SETTINGS, "search_path": f'"{config.schema}"'}
        self._idle: list[Link] = []
        self._busy: set[Link] = set()
        self._connecting: dict[asyncio.Timeout, float] = {}
        self._pulse = Pulse(self._probe, self._waiting, self._cut)
        self._room = size
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False
        self.greet: Callable[[Link], Awaitable[None]] | None = None
        """Awaited with each new connection before it carries calls."""

    async def call(
        self, name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> Rows:
        """Rows that statement `name` answers.

        Raises Unavailable after `deadline` seconds (default: the one of all calls), NoSpace,
        InvalidArgument, and StorageError for refusals of the database that no repetition cures.
        """
        return (await self.tell(name, args, deadline))[0]

    async def tell(
        self, name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> tuple[Rows, bool]:
        """As `call`; also whether an earlier sending broke, so that it may have been applied."""
        deadline = self._deadline if deadline is None else deadline
        until = asyncio.get_running_loop().time() + deadline
        pause = _FIRST_PAUSE
        broken = False
        while True:
            try:
                return await self._attempt(name, args, until), broken
            except _REPEAT as error:
                left = until - asyncio.get_running_loop().time()
                if left <= pause or self._closed:
                    raise Unavailable("metadata database") from error
                broken = True
            except asyncpg.PostgresError as error:
                raise _translated(error) from None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 jitter only
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def apart(self) -> asyncpg.Connection:
        """A connection of its own, for the caller to end. OSError and what asyncpg raises."""
        async with asyncio.timeout(CONNECT):
            return await self._open()

    async def close(self) -> None:
        """Closes all idle connections; calls in flight close theirs. Idempotent."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        await self._pulse.close()
        while self._idle:
            connection = self._idle.pop().connection
            try:
                await connection.close(timeout=CONNECT)
            except (OSError, asyncpg.PostgresError, *_LOST):
                connection.terminate()

    async def _attempt(self, name: str, args: tuple[object, ...], until: float) -> Rows:
        """Sends a call once; a link that failed is never used again."""
        if self._closed:
            raise Unavailable("closed")
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
            # Of a standby, or with outdated statements, a link stays useless.
            useless = isinstance(error, _REPEAT) and not isinstance(error, _CONFLICT)
            healthy = not useless and not link.connection.is_closed()
            raise
        finally:
            self._busy.discard(link)
            self._put(link, healthy)
        return rows

    async def _take(self, until: float) -> Link:
        """A link when none is idle: a new one, or the next that is put back."""
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
        """Lets one waiting call look again."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _end_lost_calls(self) -> None:
        """Breaks the connections of calls that have waited too long; `call` sends them again."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        suspicious = now - SUSPECT
        for link in list(self._busy):
            if link.until < now:
                link.connection.terminate()
            elif link.since < suspicious:
                self._pulse.look()
        if any(since < suspicious for since in self._connecting.values()):
            self._pulse.look()
        self._watch = loop.call_later(_WATCH, self._end_lost_calls)

    def _waiting(self) -> bool:
        return bool(self._busy or self._connecting)

    def _cut(self, before: float) -> None:
        """The server was away and is back: what was sent into the void is sent again now."""
        for link in list(self._busy):
            if link.since < before:
                link.connection.terminate()
        now = asyncio.get_running_loop().time()
        for bound, since in self._connecting.items():
            if since < before and not bound.expired():
                bound.reschedule(now)

    async def _probe(self) -> None:
        """Raises when the address in use does not answer; the next one is tried from then on."""
        try:
            await knock(self._addresses[self._preferred])
        except BaseException:  # also the pulse's time-out
            self._preferred = (self._preferred + 1) % len(self._addresses)
            raise

    async def _connect(self, timeout: float) -> Link:
        """A connection that its session has greeted."""
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
        """A connection to the address that takes writes: the last good one is tried first."""
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
        raise ConnectionError("none of the database's addresses") from error
