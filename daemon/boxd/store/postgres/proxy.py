"""Browsers' proxy sessions in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import NotFound
from boxd.model.access.proxy import ProxySession
from boxd.store.postgres.pool import PostgresPool, values_of

if TYPE_CHECKING:
    from datetime import datetime


class PostgresProxy(PostgresPool):
    """The table `proxy_session`. The database deletes a session with its box or its key.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def add_proxy_session(self, session: ProxySession, sha256: bytes) -> None:
        try:
            await self._execute(
                "INSERT INTO boxd.proxy_session (id, owner, scope, key_id, box_id, port, host, "
                "created, expires, sha256) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
                "ON CONFLICT (id) DO NOTHING",
                *values_of(session),
                sha256,
            )
        except asyncpg.ForeignKeyViolationError:
            raise NotFound("no such box") from None

    async def find_proxy_session(self, sha256: bytes) -> ProxySession | None:
        row = await self._row(
            "SELECT s.* FROM boxd.proxy_session s "
            "JOIN boxd.box b ON b.id = s.box_id AND b.owner = s.owner "
            "JOIN boxd.api_key k ON k.id = s.key_id AND k.owner = s.owner "
            "WHERE s.sha256 = $1",
            sha256,
        )
        if row is None:
            return None
        return ProxySession(**{name: value for name, value in row.items() if name != "sha256"})

    async def trim_proxy_sessions(self, owner: str, now: datetime, keep: int) -> None:
        await self._execute(
            "DELETE FROM boxd.proxy_session WHERE owner = $1 AND (expires <= $2 OR id NOT IN "
            "(SELECT id FROM boxd.proxy_session WHERE owner = $1 AND expires > $2 "
            "ORDER BY created DESC, id LIMIT $3))",
            owner,
            now,
            keep,
        )
