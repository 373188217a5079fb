"""Ends what volumes' roles keep running in the metadata database, and recounts what they use.

A role can reset every time-out of its own session, so none of them is a limit. The watchdog looks
from outside, as the superuser: a transaction (a single statement is one) that is older than the
limit is ended with its connection. So no role holds back vacuum, locks or a processor for longer
than `LIMIT` and one `TICK`. The drive's own calls take milliseconds; long work of its tools goes in
short transactions.

A role can also write any row of its own volume, the books of its use included. One volume at a time
is counted anew from its inodes, and the difference is booked.

Looking and counting are two tasks with connections of their own: a volume that is slow to count,
or whose rows are locked, keeps nobody from looking.

Critical section: none; a connection is used by one task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from boxd.tasks import BackgroundTasks
from boxd.workspaces.provision import CONNECT_TIMEOUT, FAILURES, NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LIMIT = 30.0
"""Seconds that a transaction of a volume's role may last."""
TICK = 2.0
"""Seconds between two looks."""
RECOUNT_EVERY = 60.0
"""Seconds between two recounts; each is of another volume."""
STATEMENT_TIMEOUT = 20.0
LOCK_TIMEOUT = 2.0
QUEUE_ALERT = 0.1
"""Share of the notification queue above which there is a warning: someone does not read."""
USE_MAX = 1 << 62

_log = logging.getLogger(__name__)

_END_OVERDUE = """
    SELECT usename, state, pid, pg_terminate_backend(pid) AS ended
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
      AND usename ~ '^v[0-9a-f]{32}$'
      AND least(xact_start, CASE WHEN state = 'active' THEN query_start END)
          < clock_timestamp() - make_interval(secs => $1)
"""
_WRONG = """
    SELECT t.bytes - coalesce(b.bytes, 0) AS bytes, t.inodes - coalesce(b.inodes, 0) AS inodes
    FROM wrkfs.true_use() t, wrkfs.booked_use() b
"""
"""By how much the books are wrong, as fsck counts. One statement: it sees one moment."""
_CORRECT = """
    UPDATE {0}.usage SET
        bytes = greatest(least(bytes::numeric + $1, $3), -$3)::bigint,
        inodes = greatest(least(inodes::numeric + $2, $3), -$3)::bigint
"""
_GIVEN_UP = (
    asyncpg.UndefinedTableError,  # the volume was dropped between its name and its count
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
)
"""What ends a recount quietly: the volume's turn comes again."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A connection that was ended: whose it was, and what it did (pg_stat_activity.state)."""

    role: str
    state: str


class DatabaseWatchdog:
    """See the module."""

    def __init__(
        self,
        admin_dsn: str,
        *,
        limit: float = LIMIT,
        tick: float = TICK,
        recount_every: float = RECOUNT_EVERY,
    ) -> None:
        """`admin_dsn` is a superuser's, of the metadata database; times are seconds."""
        self._admin_dsn = admin_dsn
        self._limit = limit
        self._tick = tick
        self._recount_every = recount_every
        self._tasks = BackgroundTasks()
        self._last = ""

    def start(self) -> None:
        """Begins to look, in the background; it goes on through outages of the database."""
        for name, every, work in (
            ("database watchdog", self._tick, self._look),
            ("recounts of use", self._recount_every, self._recount_next),
        ):
            self._tasks.start(self._repeat(every, work), name=name)

    async def close(self) -> None:
        """Ends it. Idempotent."""
        await self._tasks.close()

    async def look(self) -> list[Ended]:
        """Ends what is overdue; a warning for each. Raises what asyncpg raises in an outage."""
        async with self._connected() as connection:
            return await self._look(connection)

    async def recount(self, name: str) -> tuple[int, int]:
        """Counts the use of a volume and corrects its books; by how many bytes and inodes.

        Calls that run meanwhile are no matter: they change the count and the books alike. Raises
        what asyncpg raises, ValueError for what is no volume's schema.
        """
        if not NAME.fullmatch(name):
            raise ValueError("not a volume's schema")
        async with self._connected() as connection:
            return await self._recount(connection, name)

    async def _look(self, connection: asyncpg.Connection) -> list[Ended]:
        rows = await connection.fetch(_END_OVERDUE, self._limit)
        for row in rows:
            _log.warning(
                "role %s: connection %d (%s) ended, its transaction lasted more than %g s",
                row["usename"],
                row["pid"],
                row["state"],
                self._limit,
            )
        full = await connection.fetchval("SELECT pg_notification_queue_usage()")
        if full > QUEUE_ALERT:
            _log.warning("the notification queue of the database is %d %% full", round(full * 100))
        return [Ended(row["usename"], row["state"] or "") for row in rows if row["ended"]]

    async def _recount(self, connection: asyncpg.Connection, name: str) -> tuple[int, int]:
        async with connection.transaction():
            # The role owns no schema and can put no function of its own into this path.
            await connection.execute(f"SET LOCAL search_path = {name}")
            row = await connection.fetchrow(_WRONG)
        if row is None or not (row["bytes"] or row["inodes"]):
            return 0, 0
        await connection.execute(_CORRECT.format(name), row["bytes"], row["inodes"], USE_MAX)
        wrong = int(row["bytes"]), int(row["inodes"])
        _log.warning("volume %s: its use was booked wrongly by %d bytes, %d inodes", name, *wrong)
        return wrong

    async def _recount_next(self, connection: asyncpg.Connection) -> None:
        """Recounts the volume that follows the last one by name, the first one after the last."""
        name = await connection.fetchval(
            "SELECT nspname FROM pg_namespace WHERE nspname ~ '^v[0-9a-f]{32}$' "
            "ORDER BY nspname <= $1, nspname LIMIT 1",
            self._last,
        )
        if name is not None:
            self._last = name
            with contextlib.suppress(*_GIVEN_UP):
                await self._recount(connection, name)

    async def _repeat(
        self, every: float, work: Callable[[asyncpg.Connection], Awaitable[object]]
    ) -> None:
        """Works now and then, on one connection as long as it lasts."""
        ailing = False
        while True:
            try:
                async with self._connected() as connection:
                    while True:
                        await asyncio.sleep(every)
                        await work(connection)
                        ailing = False
            except FAILURES as error:
                if not ailing:
                    _log.warning("nobody watches the database: %s", type(error).__name__)
                ailing = True
            await asyncio.sleep(self._tick)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(
            self._admin_dsn,
            timeout=CONNECT_TIMEOUT,
            command_timeout=2 * STATEMENT_TIMEOUT,
            server_settings={
                "lock_timeout": f"{LOCK_TIMEOUT:g}s",
                "statement_timeout": f"{STATEMENT_TIMEOUT:g}s",
            },
        )
        try:
            yield connection
        finally:
            with contextlib.suppress(*FAILURES):
                await connection.close(timeout=CONNECT_TIMEOUT)
