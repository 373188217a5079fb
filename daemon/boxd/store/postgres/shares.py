"""Shares in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import NotFound
from boxd.model.access.share import Share
from boxd.store.postgres.pool import PostgresPool, values_of

if TYPE_CHECKING:
    from datetime import datetime


class PostgresShares(PostgresPool):
    """The table `share`. The database deletes the shares of a box with the box.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def add_share(self, share: Share, sha256: bytes) -> None:
        try:
            await self._execute(
                "INSERT INTO boxd.share (id, owner, box_id, created, expires, last_used, sha256) "
                "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING",
                *values_of(share),
                sha256,
            )
        except asyncpg.ForeignKeyViolationError:
            raise NotFound("no such box") from None

    async def shares(self, owner: str) -> list[Share]:
        rows = await self._rows(
            "SELECT * FROM boxd.share WHERE owner = $1 ORDER BY created, id", owner
        )
        return [_share(row) for row in rows]

    async def find_share(self, sha256: bytes) -> Share | None:
        row = await self._row("SELECT * FROM boxd.share WHERE sha256 = $1", sha256)
        return None if row is None else _share(row)

    async def remove_share(self, share_id: str) -> None:
        await self._execute("DELETE FROM boxd.share WHERE id = $1", share_id)

    async def touch_share(self, share_id: str, when: datetime) -> None:
        await self._execute(
            "UPDATE boxd.share SET last_used = greatest(last_used, $2) WHERE id = $1",
            share_id,
            when,
        )


def _share(row: asyncpg.Record) -> Share:
    return Share(**{name: value for name, value in row.items() if name != "sha256"})
