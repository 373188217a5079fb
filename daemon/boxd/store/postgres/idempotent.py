"""Requests with an idempotency key in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.idempotent import IdempotentRequest
from boxd.store.postgres.pool import PostgresPool

if TYPE_CHECKING:
    from datetime import datetime


class PostgresIdempotent(PostgresPool):
    """The table `idempotent_request`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def start_request(self, request: IdempotentRequest) -> IdempotentRequest:
        await self._execute(
            "INSERT INTO boxd.idempotent_request "
            "(owner, key_sha256, request_sha256, attempt, started) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (owner, key_sha256) DO NOTHING",
            request.owner,
            request.key_sha256,
            request.request_sha256,
            request.attempt,
            request.started,
        )
        row = await self._row(
            "SELECT * FROM boxd.idempotent_request WHERE owner = $1 AND key_sha256 = $2",
            request.owner,
            request.key_sha256,
        )
        return request if row is None else IdempotentRequest(**row)

    async def finish_request(self, request: IdempotentRequest, status: int, sealed: bytes) -> None:
        await self._execute(
            "UPDATE boxd.idempotent_request SET status = $4, sealed = $5 "
            "WHERE owner = $1 AND key_sha256 = $2 AND attempt = $3",
            request.owner,
            request.key_sha256,
            request.attempt,
            status,
            sealed,
        )

    async def drop_request(self, request: IdempotentRequest) -> None:
        await self._execute(
            "DELETE FROM boxd.idempotent_request "
            "WHERE owner = $1 AND key_sha256 = $2 AND attempt = $3",
            request.owner,
            request.key_sha256,
            request.attempt,
        )

    async def trim_requests(self, owner: str, before: datetime, keep: int) -> None:
        await self._execute(
            "DELETE FROM boxd.idempotent_request WHERE owner = $1 AND (started < $2 OR "
            "key_sha256 NOT IN (SELECT key_sha256 FROM boxd.idempotent_request WHERE owner = $1 "
            "ORDER BY started DESC, key_sha256 LIMIT $3))",
            owner,
            before,
            keep,
        )
