"""Connections to the control database, with retries of failed statements.

The pool retries a statement whose connection breaks until `deadline` seconds have passed. So all
statements must be idempotent, as boxd.store.interface requires.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from boxd.errors import Unavailable
from boxd.observation import UNOBSERVED, Waiting, Work
from boxd.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from _typeshed import DataclassInstance

    from boxd.observation import Observer

    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

_T = TypeVar("_T")


_RETRYABLE = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server closed the connection during the statement
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
"""The server is unavailable or shuts down, so the statement is retried."""


_TABLE = re.compile(r"\bboxd\.(\w+)")


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Connections of a pool, and statements that wait for one."""

    limit: int
    busy: int
    idle: int
    waiting: int


class _Connection(_Base):
    """A connection that returns to the pool without a round trip to the server."""

    def get_reset_query(self) -> str:
        """Return no query. asyncpg still rolls back an open transaction."""
        # No statement here changes its session. A reset query would cost a round trip after each.
        return ""


class PostgresPool:
    """A small connection pool, the base class of each group of tables.

    Its only state across awaits is the pool, which `start` creates and `close` closes.
    """

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = 4,
        deadline: float = 20.0,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._dsn = dsn
        self._connections = connections
        self._deadline = deadline
        self._observer = observer
        self._statements = Waiting()
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    @property
    def use(self) -> PoolUse:
        """The connections and statements of the pool now."""
        pool, statements = self._pool, self._statements.count
        if pool is None:
            return PoolUse(self._connections, 0, 0, 0)
        size, idle = pool.get_size(), pool.get_idle_size()
        return PoolUse(self._connections, size - idle, idle, max(0, statements - self._connections))

    async def start(self) -> None:
        """Connect and migrate the schema. Raises Unavailable if the server does not answer."""
        self._pool = await asyncpg.create_pool(
            self._dsn,
            min_size=0,
            max_size=self._connections,
            connection_class=_Connection,
            timeout=5,
            command_timeout=10,
            max_inactive_connection_lifetime=300,
            server_settings={"application_name": "boxd"},
        )
        try:
            await self._retry(self._migrate)
        except BaseException:
            await self.close()
            raise

    async def _migrate(self) -> None:
        async with self._started.acquire() as connection:
            await migrate(connection)

    async def close(self) -> None:
        """Close all connections. After 5 s, terminate them."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), 5)
        except (TimeoutError, *_RETRYABLE):
            pool.terminate()

    async def _execute(self, query: str, *values: object) -> None:
        await self._run(query, lambda: self._started.execute(query, *values))

    async def _rows(self, query: str, *values: object) -> list[asyncpg.Record]:
        return await self._run(query, lambda: self._started.fetch(query, *values))

    async def _row(
        self,
        query: str,
        *values: object,
        retry_query: str | None = None,
        retry_values: tuple[object, ...] | None = None,
    ) -> asyncpg.Record | None:
        """Return one row or None.

        `retry_query` finds the row of an earlier try that was committed before its connection
        broke. `retry_values` are its values; None: the values of `query`.
        """
        tries = 0

        async def attempt() -> asyncpg.Record | None:
            nonlocal tries
            tries += 1
            row = await self._started.fetchrow(query, *values)
            if row is None and tries > 1 and retry_query is not None:
                row = await self._started.fetchrow(retry_query, *(retry_values or values))
            return row

        return await self._run(query, attempt)

    @property
    def _started(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise Unavailable("the control database is not connected")
        return self._pool

    async def _run(self, query: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Run `attempt`, which executes `query`, as `_retry` does, and report it."""
        with self._statements, self._observer.work(Work.QUERY, summary(query)):
            return await self._retry(attempt)

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Run `attempt` until it succeeds. Raises Unavailable after the deadline."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadline
        pause = 0.05
        while True:
            try:
                async with asyncio.timeout_at(end):
                    return await attempt()
            except (TimeoutError, *_RETRYABLE) as error:
                if loop.time() + pause >= end:
                    raise Unavailable(
                        f"the control database does not answer ({type(error).__name__}): "
                        "check that PostgreSQL is running"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


@lru_cache(maxsize=256)
def summary(query: str) -> str:
    """Return the verb and the first table of a statement, such as `select box`."""
    table = _TABLE.search(query)
    verb = query.split(maxsplit=1)[0].lower()
    return verb if table is None else f"{verb} {table[1]}"


def insertion(table: str, record: type[DataclassInstance]) -> str:
    """Return an INSERT of all fields of a record. An existing id is left unchanged."""
    names = [field.name for field in fields(record)]
    placeholders = ", ".join(f"${number}" for number in range(1, len(names) + 1))
    columns = f"{table} ({', '.join(names)})"
    return " ".join(
        ("INSERT INTO", columns, "VALUES", f"({placeholders})", "ON CONFLICT (id) DO NOTHING")
    )


def values_of(record: DataclassInstance) -> list[object]:
    """Return the values of all fields, in the order of the columns."""
    return [getattr(record, field.name) for field in fields(record)]
