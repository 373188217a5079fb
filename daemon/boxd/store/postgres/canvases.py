"""Canvases in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.canvas import Canvas
from boxd.store.postgres.pool import PostgresPool, values_of

if TYPE_CHECKING:
    from datetime import datetime

    import asyncpg


class PostgresCanvases(PostgresPool):
    """The table `canvas`. Lists do not read the contents.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def put_canvas(self, canvas: Canvas, content: str) -> None:
        await self._execute(
            "INSERT INTO boxd.canvas "
            "(owner, scope, id, title, mime, size, revision, updated, expires, content) VALUES "
            "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
            "ON CONFLICT (owner, coalesce(scope, ''), id) DO UPDATE SET title = $4, mime = $5, "
            "size = $6, revision = $7, updated = $8, expires = $9, content = $10",
            *values_of(canvas),
            content,
        )

    async def canvases(self, owner: str, scope: str | None) -> list[Canvas]:
        rows = await self._rows(
            "SELECT owner, scope, id, title, mime, size, revision, updated, expires "
            "FROM boxd.canvas WHERE owner = $1 AND coalesce(scope, '') = coalesce($2, '') "
            'ORDER BY id COLLATE "C"',
            owner,
            scope,
        )
        return [Canvas(**row) for row in rows]

    async def canvas(
        self, owner: str, scope: str | None, canvas_id: str
    ) -> tuple[Canvas, str] | None:
        row = await self._row(
            "SELECT * FROM boxd.canvas "
            "WHERE owner = $1 AND coalesce(scope, '') = coalesce($2, '') AND id = $3",
            owner,
            scope,
            canvas_id,
        )
        return None if row is None else _with_content(row)

    async def remove_canvas(self, owner: str, scope: str | None, canvas_id: str) -> None:
        await self._execute(
            "DELETE FROM boxd.canvas "
            "WHERE owner = $1 AND coalesce(scope, '') = coalesce($2, '') AND id = $3",
            owner,
            scope,
            canvas_id,
        )

    async def remove_canvases(self, before: datetime) -> None:
        await self._execute("DELETE FROM boxd.canvas WHERE expires <= $1", before)


def _with_content(row: asyncpg.Record) -> tuple[Canvas, str]:
    fields = dict(row)
    content = fields.pop("content")
    return Canvas(**fields), content
