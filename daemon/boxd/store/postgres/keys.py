"""API keys in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import Conflict
from boxd.model.access.key import ApiKey
from boxd.store.postgres.pool import PostgresPool, values_of

if TYPE_CHECKING:
    from datetime import datetime


class PostgresKeys(PostgresPool):
    """The table `api_key`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def add_key(self, key: ApiKey, sha256: bytes) -> None:
        try:
            await self._execute(
                "INSERT INTO boxd.api_key (id, owner, name, scope, created, expires, last_used, "
                "sha256) VALUES "
                "($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING",
                *values_of(key),
                sha256,
            )
        except asyncpg.UniqueViolationError:
            raise Conflict(f"an API key named {key.name} already exists") from None

    async def keys(self, owner: str) -> list[ApiKey]:
        rows = await self._rows(
            "SELECT * FROM boxd.api_key WHERE owner = $1 ORDER BY created, name", owner
        )
        return [_key(row) for row in rows]

    async def find_key(self, sha256: bytes, now: datetime) -> ApiKey | None:
        row = await self._row(
            "SELECT * FROM boxd.api_key WHERE sha256 = $1 AND (expires IS NULL OR expires > $2)",
            sha256,
            now,
        )
        return None if row is None else _key(row)

    async def remove_key(self, key_id: str) -> None:
        await self._execute("DELETE FROM boxd.api_key WHERE id = $1", key_id)

    async def touch_key(self, key_id: str, when: datetime) -> None:
        await self._execute(
            "UPDATE boxd.api_key SET last_used = greatest(last_used, $2) WHERE id = $1",
            key_id,
            when,
        )


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(**{name: value for name, value in row.items() if name != "sha256"})
