"""ControlStore in PostgreSQL.

Every method is one statement, so it is atomic by itself. A statement whose connection broke is
sent again until `deadline` seconds have passed: all of them are idempotent (see the interface).
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from boxd.errors import Conflict, NotFound, Unavailable
from boxd.model.box import TRANSITIONS, Box, BoxState
from boxd.model.key import ApiKey
from boxd.model.volume import Volume
from boxd.store.migrate import migrate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime, timedelta

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


class PostgresStore:
    """A pool of few connections; the daemon's control traffic is light.

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

    async def add_box(self, box: Box) -> None:
        """See ControlStore."""
        try:
            await self._execute(
                "INSERT INTO boxd.box (id, owner, workspace, name, image, flavor, cpus, mem_mb, "
                "state, detail, backend, host_key, created, deadline, grace, ephemeral, drive) "
                "VALUES "
                "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) "
                "ON CONFLICT (id) DO NOTHING",
                *_values(box),
            )
        except asyncpg.UniqueViolationError:
            raise Conflict(f"box {box.ref} exists") from None

    async def box(self, box_id: str) -> Box | None:
        """See ControlStore."""
        row = await self._row("SELECT * FROM boxd.box WHERE id = $1", box_id)
        return None if row is None else _box(row)

    async def boxes(self, owner: str) -> list[Box]:
        """See ControlStore."""
        rows = await self._rows(
            "SELECT * FROM boxd.box WHERE owner = $1 ORDER BY created, id", owner
        )
        return [_box(row) for row in rows]

    async def all_boxes(self) -> list[Box]:
        """See ControlStore."""
        rows = await self._rows("SELECT * FROM boxd.box ORDER BY created, id")
        return [_box(row) for row in rows]

    async def change_state(
        self, box_id: str, before: BoxState, after: BoxState, detail: str = ""
    ) -> Box:
        """See ControlStore.

        A statement that is sent again after its first try was committed finds `after` and the
        new detail in place; that counts as done.
        """
        if (before, after) in TRANSITIONS:
            row = await self._row(
                "UPDATE boxd.box SET state = $3, detail = $4 WHERE id = $1 AND "
                "state = $2 RETURNING *",
                box_id,
                before.value,
                after.value,
                detail,
                twice="SELECT * FROM boxd.box WHERE id = $1 AND state <> $2 "
                "AND state = $3 AND detail = $4",
            )
            if row is not None:
                return _box(row)
        box = await self.box(box_id)
        if box is None:
            raise NotFound("no such box")
        raise Conflict(f"box {box.ref} is {box.state}: it cannot go from {before} to {after}")

    async def change_grace(self, box_id: str, grace: timedelta | None) -> None:
        """See ControlStore."""
        await self._execute("UPDATE boxd.box SET grace = $2 WHERE id = $1", box_id, grace)

    async def change_drive(self, box_id: str, drive: bool) -> None:
        """See ControlStore."""
        await self._execute("UPDATE boxd.box SET drive = $2 WHERE id = $1", box_id, drive)

    async def remove_box(self, box_id: str) -> None:
        """See ControlStore."""
        await self._execute("DELETE FROM boxd.box WHERE id = $1", box_id)

    async def add_key(self, key: ApiKey, sha256: bytes) -> None:
        """See ControlStore."""
        try:
            await self._execute(
                "INSERT INTO boxd.api_key (id, owner, name, scope, created, expires, last_used, "
                "sha256) VALUES "
                "($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING",
                *_values(key),
                sha256,
            )
        except asyncpg.UniqueViolationError:
            raise Conflict(f"an API key named {key.name} exists") from None

    async def keys(self, owner: str) -> list[ApiKey]:
        """See ControlStore."""
        rows = await self._rows(
            "SELECT * FROM boxd.api_key WHERE owner = $1 ORDER BY created, name", owner
        )
        return [_key(row) for row in rows]

    async def find_key(self, sha256: bytes) -> ApiKey | None:
        """See ControlStore."""
        row = await self._row("SELECT * FROM boxd.api_key WHERE sha256 = $1", sha256)
        return None if row is None else _key(row)

    async def remove_key(self, key_id: str) -> None:
        """See ControlStore."""
        await self._execute("DELETE FROM boxd.api_key WHERE id = $1", key_id)

    async def touch_key(self, key_id: str, when: datetime) -> None:
        """See ControlStore."""
        await self._execute(
            "UPDATE boxd.api_key SET last_used = greatest(last_used, $2) WHERE id = $1",
            key_id,
            when,
        )

    async def add_workspace(self, owner: str, name: str, created: datetime) -> bool:
        """See ControlStore."""
        row = await self._row(
            "INSERT INTO boxd.workspace (owner, name, created) VALUES ($1, $2, $3) "
            "ON CONFLICT DO NOTHING RETURNING name",
            owner,
            name,
            created,
        )
        return row is not None

    async def workspaces(self, owner: str) -> list[str]:
        """See ControlStore."""
        rows = await self._rows(
            'SELECT name FROM boxd.workspace WHERE owner = $1 ORDER BY name COLLATE "C"', owner
        )
        return [row["name"] for row in rows]

    async def add_volume(self, volume: Volume) -> None:
        """See ControlStore."""
        try:
            await self._execute(
                "INSERT INTO boxd.volume (id, owner, workspace, role, schema, prefix, sealed, "
                "created) VALUES "
                "($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING",
                *_values(volume),
            )
        except asyncpg.UniqueViolationError:
            raise Conflict("the workspace has a volume") from None

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        """See ControlStore."""
        row = await self._row(
            "SELECT * FROM boxd.volume WHERE owner = $1 "
            "AND coalesce(workspace, '') = coalesce($2, '')",
            owner,
            workspace,
        )
        return None if row is None else Volume(**row)

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        """See ControlStore."""
        rows = await self._rows(
            "SELECT * FROM boxd.volume WHERE $1::text IS NULL OR owner = $1 ORDER BY created, id",
            owner,
        )
        return [Volume(**row) for row in rows]

    async def remove_volume(self, volume_id: str) -> None:
        """See ControlStore."""
        await self._execute("DELETE FROM boxd.volume WHERE id = $1", volume_id)

    async def setting(self, name: str) -> str | None:
        """See ControlStore."""
        row = await self._row("SELECT value FROM boxd.setting WHERE name = $1", name)
        return None if row is None else row["value"]

    async def put_setting(self, name: str, value: str) -> None:
        """See ControlStore."""
        await self._execute(
            "INSERT INTO boxd.setting (name, value) VALUES ($1, $2) "
            "ON CONFLICT (name) DO UPDATE SET value = $2",
            name,
            value,
        )

    async def _execute(self, query: str, *values: object) -> None:
        await self._retry(lambda: self._started.execute(query, *values))

    async def _rows(self, query: str, *values: object) -> list[asyncpg.Record]:
        return await self._retry(lambda: self._started.fetch(query, *values))

    async def _row(
        self, query: str, *values: object, twice: str | None = None
    ) -> asyncpg.Record | None:
        """One row or None. `twice` finds the row of a first try that broke after its commit."""
        tries = 0

        async def attempt() -> asyncpg.Record | None:
            nonlocal tries
            tries += 1
            row = await self._started.fetchrow(query, *values)
            if row is None and tries > 1 and twice is not None:
                row = await self._started.fetchrow(twice, *values)
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


def _values(record: Box | ApiKey | Volume) -> list[object]:
    """The fields in the order of the columns."""
    return [getattr(record, field.name) for field in fields(record)]


def _box(row: asyncpg.Record) -> Box:
    return Box(**{**row, "state": BoxState(row["state"])})


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(**{name: value for name, value in row.items() if name != "sha256"})
