"""Connections to the control database, and statements that are sent again when one breaks.

A statement whose connection broke is sent again until `deadline` seconds have passed, so all of
them are idempotent (see the interface).
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from boxd.errors import Unavailable
from boxd.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from _typeshed import DataclassInstance

    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

_T = TypeVar("_T")


_BROKEN = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a goodbye of the server met the statement half-way
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
"""The server is away or going away: worth sending the statement again."""


class _Connection(_Base):
    """Goes back into the pool without a question to the server."""

    def get_reset_query(self) -> str:
        """None: no statement here leaves anything in its session, and it would be a second round
        trip after each; a transaction that is open is rolled back all the same."""
        return ""


class PostgresPool:
    """A pool of few connections, the base of each group of tables; control traffic is light.

    Holds no state across awaits beside the pool, which `start` makes and `close` ends.
    """

    def __init__(self, dsn: str, *, connections: int = 4, deadline: float = 20.0) -> None:
        self._dsn = dsn
        self._connections = connections
        self._deadline = deadline
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def start(self) -> None:
        """Connects and migrates; Unavailable when the server stays away."""
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
        """Ends all connections, at the latest after 5 s by force."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), 5)
        except (TimeoutError, *_BROKEN):
            pool.terminate()

    async def _execute(self, query: str, *values: object) -> None:
        await self._retry(lambda: self._started.execute(query, *values))

    async def _rows(self, query: str, *values: object) -> list[asyncpg.Record]:
        return await self._retry(lambda: self._started.fetch(query, *values))

    async def _row(
        self,
        query: str,
        *values: object,
        twice: str | None = None,
        twice_values: tuple[object, ...] | None = None,
    ) -> asyncpg.Record | None:
        """One row or None. `twice` finds the row of a first try that broke after its commit.

        `twice_values` are its values when they are not those of `query`.
        """
        tries = 0

        async def attempt() -> asyncpg.Record | None:
            nonlocal tries
            tries += 1
            row = await self._started.fetchrow(query, *values)
            if row is None and tries > 1 and twice is not None:
                row = await self._started.fetchrow(twice, *(twice_values or values))
            return row

        return await self._retry(attempt)

    @property
    def _started(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise Unavailable("the control database is not connected")
        return self._pool

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Runs `attempt` until it does not break; Unavailable after the deadline."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadline
        pause = 0.05
        while True:
            try:
                async with asyncio.timeout_at(end):
                    return await attempt()
            except (TimeoutError, *_BROKEN) as error:
                if loop.time() + pause >= end:
                    raise Unavailable(
                        f"the control database does not answer ({type(error).__name__}): "
                        "look whether PostgreSQL runs"
                    ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


def insertion(table: str, record: type[DataclassInstance]) -> str:
    """An INSERT of all fields of a record; one of a known id changes nothing."""
    names = [field.name for field in fields(record)]
    places = ", ".join(f"${number}" for number in range(1, len(names) + 1))
    columns = f"{table} ({', '.join(names)})"
    return " ".join(
        ("INSERT INTO", columns, "VALUES", f"({places})", "ON CONFLICT (id) DO NOTHING")
    )


def values_of(record: DataclassInstance) -> list[object]:
    """The fields in the order of the columns."""
    return [getattr(record, field.name) for field in fields(record)]
