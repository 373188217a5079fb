"""Ends overlong transactions of volumes' roles in the metadata database, and recounts their use.

A role can reset every timeout of its own session, so timeouts do not limit it. The watchdog
enforces a limit from outside, as the superuser: it ends the connection of each transaction that is
older than `LIMIT`. A single statement is a transaction, too. So no role holds vacuum, locks or a
processor for longer than `LIMIT` and one `TICK`. The drive's own calls take milliseconds, and its
tools split long work into short transactions.

A role can also write any row of its own volume, including the counters of its use. So the watchdog
recounts one volume at a time from its inodes, and corrects the counters.

The two jobs are two tasks with connections of their own. So a volume that is slow to count, or has
locked rows, does not delay the search for overlong transactions.

Critical section: none; each connection belongs to one task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from boxd.tasks import BackgroundTasks
from boxd.workspaces.provision import CONNECT_TIMEOUT, FAILURES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LIMIT = 30.0
"""Maximum duration of a transaction of a volume's role, in seconds."""
TICK = 2.0
"""Seconds between two searches for overlong transactions."""
RECOUNT_EVERY = 60.0
"""Seconds between two recounts. Each recount covers the next volume."""
STATEMENT_TIMEOUT = 20.0
LOCK_TIMEOUT = 2.0
QUEUE_ALERT = 0.1
"""The watchdog warns above this share of the notification queue: a listener does not read."""
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
_DIFFERENCE = """
    SELECT t.bytes - coalesce(b.bytes, 0) AS bytes, t.inodes - coalesce(b.inodes, 0) AS inodes
    FROM wrkfs.true_use() t, wrkfs.booked_use() b
"""
"""The error of the counters, as fsck computes it. A single statement sees one snapshot."""
_CORRECT = """
    UPDATE {0}.usage SET
        bytes = greatest(least(bytes::numeric + $1, $3), -$3)::bigint,
        inodes = greatest(least(inodes::numeric + $2, $3), -$3)::bigint
"""
_SKIPPED = (
    asyncpg.UndefinedTableError,  # the volume was dropped between its name and its count
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
)
"""Errors that end a recount without a message, because a later round recounts the volume."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A connection that the watchdog ended: its role and its state (pg_stat_activity.state)."""

    role: str
    state: str


class DatabaseWatchdog:
    """Runs both jobs of the watchdog on one metadata database."""

    def __init__(
        self,
        admin_dsn: str,
        *,
        limit: float = LIMIT,
        tick: float = TICK,
        recount_every: float = RECOUNT_EVERY,
    ) -> None:
        """`admin_dsn` is the DSN of a superuser of the metadata database. Times are seconds."""
        self._admin_dsn = admin_dsn
        self._limit = limit
        self._tick = tick
        self._recount_every = recount_every
        self._tasks = BackgroundTasks()
        self._last = ""

    def start(self) -> None:
        """Start in the background. Outages of the database do not end it."""
        for name, every, work in (
            ("database watchdog", self._tick, self._end_overdue),
            ("recounts of use", self._recount_every, self._recount_next),
        ):
            self._tasks.start(self._repeat(every, work), name=name)

    async def close(self) -> None:
        """Stop. Idempotent."""
        await self._tasks.close()

    async def _end_overdue(self, connection: asyncpg.Connection) -> list[Ended]:
        """End overlong transactions, with a warning for each."""
        rows = await connection.fetch(_END_OVERDUE, self._limit)
        for row in rows:
            _log.warning(
                "role %s: connection %d (%s) ended, its transaction took more than %g s",
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
        """Correct the counters of a volume; return their error in bytes and inodes.

        `name` is its schema. Calls of the volume may run meanwhile: they change its files and its
        counters alike.
        """
        async with connection.transaction():
            # The role owns no schema, so this path contains no function of the role.
            await connection.execute(f"SET LOCAL search_path = {name}")
            row = await connection.fetchrow(_DIFFERENCE)
        if row is None or not (row["bytes"] or row["inodes"]):
            return 0, 0
        await connection.execute(_CORRECT.format(name), row["bytes"], row["inodes"], USE_MAX)
        bytes_error, inodes_error = int(row["bytes"]), int(row["inodes"])
        _log.warning(
            "volume %s: its counters were wrong by %d bytes and %d inodes; they are corrected",
            name,
            bytes_error,
            inodes_error,
        )
        return bytes_error, inodes_error

    async def _recount_next(self, connection: asyncpg.Connection) -> None:
        """Recount the volume that follows the previous one by name, or the first volume."""
        name = await connection.fetchval(
            "SELECT nspname FROM pg_namespace WHERE nspname ~ '^v[0-9a-f]{32}$' "
            "ORDER BY nspname <= $1, nspname LIMIT 1",
            self._last,
        )
        if name is not None:
            self._last = name
            with contextlib.suppress(*_SKIPPED):
                await self._recount(connection, name)

    async def _repeat(
        self, every: float, work: Callable[[asyncpg.Connection], Awaitable[object]]
    ) -> None:
        """Repeat `work` on one connection, and reconnect after a failure."""
        failing = False
        while True:
            try:
                async with self._connected() as connection:
                    while True:
                        await asyncio.sleep(every)
                        await work(connection)
                        failing = False
            except FAILURES as error:
                if not failing:
                    _log.warning(
                        "the database watchdog cannot work: %s; trying again", type(error).__name__
                    )
                failing = True
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
