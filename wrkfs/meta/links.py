"""Connections to the metadata database: a small pool, and calls that outlive lost connections.

A call that fails because of a lost connection, a restart, or a conflict that the database asks to
repeat is sent again, with the same arguments, until one deadline. Mutating functions recognise a
repetition by their slot and sequence number, so it is applied once.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from wrkfs.errors import InvalidArgument, NoSpace, StorageError, Unavailable
from wrkfs.meta.statements import SERVER_SETTINGS, STATEMENTS

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    from wrkfs.config import VolumeConfig

Rows: TypeAlias = "list[asyncpg.Record]"

DEADLINE = 60.0
"""Seconds after which a call gives up with Unavailable."""
ATTEMPT = 15.0
"""Seconds after which one sending counts as lost (a black hole in the network)."""
CONNECT = 5.0
"""Seconds for making a connection."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0

_REPEAT = (
    OSError,  # also TimeoutError
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby; its promotion or another address follows
    asyncpg.InvalidCachedStatementError,  # the functions were replaced by another release
)


class _Unsendable(Exception):
    """A value does not fit its parameter; nothing was sent."""


class _Link:
    """One connection with its prepared statements."""

    def __init__(
        self, connection: asyncpg.Connection, statements: dict[str, PreparedStatement]
    ) -> None:
        self.connection = connection
        self.statements = statements


class Links:
    """At most `size` connections, made when needed.

    Critical sections: between `_take` and `_put` a link belongs to one call; `_idle` changes
    without an await in between. Several calls run at once, one per link.
    """

    def __init__(self, config: VolumeConfig, size: int) -> None:
        self._config = config
        self._idle: list[_Link] = []
        self._free = asyncio.Semaphore(size)
        self._closed = False

    async def call(self, name: str, args: tuple[object, ...], deadline: float = DEADLINE) -> Rows:
        """Rows that statement `name` answers.

        Raises Unavailable after `deadline` seconds, NoSpace, StorageError for refusals of the
        database that no repetition cures.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._attempt(name, args, until - loop.time())
            except _REPEAT as error:
                left = until - loop.time()
                if left <= pause or self._closed:
                    raise Unavailable("metadata database") from error
            except asyncpg.DiskFullError:
                raise NoSpace("metadata database") from None
            except _Unsendable:
                raise InvalidArgument("value out of range") from None
            except asyncpg.PostgresError as error:
                # Rows that no function of ours writes, or rights taken away. Only the code: the
                # text may quote names.
                raise StorageError(f"metadata database refused: {error.sqlstate}") from None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 jitter only
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def close(self) -> None:
        """Closes all idle connections; calls in flight close theirs. Idempotent."""
        self._closed = True
        while self._idle:
            connection = self._idle.pop().connection
            try:
                await connection.close(timeout=CONNECT)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()

    async def _attempt(self, name: str, args: tuple[object, ...], left: float) -> Rows:
        """Sends a call once; a link that failed is never used again."""
        if self._closed:
            raise Unavailable("closed")
        link = await self._take(left)
        healthy = False
        try:
            rows: Rows = await link.statements[name].fetch(*args, timeout=min(left, ATTEMPT))
            healthy = True
        except asyncpg.DataError as error:
            healthy = not link.connection.is_closed()
            if type(error) is asyncpg.DataError:  # its subclasses come from the server
                raise _Unsendable from error
            raise
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            # The latter when the server's farewell arrived while the link was idle.
            raise ConnectionError("connection lost") from error
        except asyncpg.PostgresError:
            healthy = not link.connection.is_closed()
            raise
        finally:
            self._put(link, healthy and not self._closed)
        return rows

    async def _take(self, left: float) -> _Link:
        if self._free.locked():
            async with asyncio.timeout(left):
                await self._free.acquire()
        else:
            await self._free.acquire()
        try:
            while self._idle:
                link = self._idle.pop()
                if not link.connection.is_closed():
                    return link
            return await self._connect(min(left, CONNECT))
        except BaseException:
            self._free.release()
            raise

    def _put(self, link: _Link, healthy: bool) -> None:
        if healthy:
            self._idle.append(link)
        else:
            link.connection.terminate()
        self._free.release()

    async def _connect(self, timeout: float) -> _Link:
        """A connection with all statements prepared, so that no call pays for it."""
        settings = {**SERVER_SETTINGS, "search_path": f'"{self._config.schema}"'}
        async with asyncio.timeout(timeout):
            connection = await asyncpg.connect(
                self._config.meta_dsn, server_settings=settings, statement_cache_size=0
            )
            try:
                statements = {
                    name: await connection.prepare(text) for name, text in STATEMENTS.items()
                }
            except BaseException:
                connection.terminate()
                raise
        return _Link(connection, statements)
