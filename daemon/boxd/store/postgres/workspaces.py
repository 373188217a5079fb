"""Workspaces and volumes in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import Conflict, NotFound
from boxd.model.volume import Volume
from boxd.model.workspace import Workspace
from boxd.store.postgres.pool import PostgresPool, values_of

if TYPE_CHECKING:
    from datetime import datetime


class PostgresWorkspaces(PostgresPool):
    """The tables `workspace` and `volume`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def add_workspace(self, owner: str, name: str, created: datetime) -> bool:
        row = await self._row(
            "INSERT INTO boxd.workspace (owner, name, created) VALUES ($1, $2, $3) "
            "ON CONFLICT DO NOTHING RETURNING name",
            owner,
            name,
            created,
        )
        return row is not None

    async def workspaces(self, owner: str) -> list[str]:
        rows = await self._rows(
            'SELECT name FROM boxd.workspace WHERE owner = $1 ORDER BY name COLLATE "C"', owner
        )
        return [row["name"] for row in rows]

    async def list_workspaces(self, owner: str) -> list[Workspace]:
        rows = await self._rows(
            'SELECT * FROM boxd.workspace WHERE owner = $1 ORDER BY name COLLATE "C"', owner
        )
        return [Workspace(**row) for row in rows]

    async def set_workspace_profile(self, owner: str, name: str, profile: str | None) -> None:
        await self._execute(
            "UPDATE boxd.workspace SET profile = $3 WHERE owner = $1 AND name = $2",
            owner,
            name,
            profile,
        )

    async def remove_workspace(self, owner: str, name: str) -> None:
        await self._execute(
            "DELETE FROM boxd.workspace WHERE owner = $1 AND name = $2", owner, name
        )

    async def add_volume(self, volume: Volume) -> None:
        try:
            await self._execute(
                "INSERT INTO boxd.volume (id, owner, workspace, role, schema, prefix, sealed, "
                "created, trashed_until) VALUES "
                "($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING",
                *values_of(volume),
            )
        except asyncpg.UniqueViolationError:
            raise Conflict("the workspace already has a volume") from None

    async def find_volume(self, owner: str, workspace: str | None) -> Volume | None:
        row = await self._row(
            "SELECT * FROM boxd.volume WHERE owner = $1 "
            "AND coalesce(workspace, '') = coalesce($2, '') AND trashed_until IS NULL",
            owner,
            workspace,
        )
        return None if row is None else Volume(**row)

    async def list_volumes(self, owner: str | None = None) -> list[Volume]:
        rows = await self._rows(
            "SELECT * FROM boxd.volume WHERE $1::text IS NULL OR owner = $1 ORDER BY created, id",
            owner,
        )
        return [Volume(**row) for row in rows]

    async def remove_volume(self, volume_id: str) -> None:
        await self._execute("DELETE FROM boxd.volume WHERE id = $1", volume_id)

    async def trash_volume(self, volume_id: str, until: datetime) -> None:
        await self._execute(
            "UPDATE boxd.volume SET trashed_until = $2 WHERE id = $1 AND trashed_until IS NULL",
            volume_id,
            until,
        )

    async def restore_volume(self, volume_id: str, workspace: str | None) -> None:
        try:
            row = await self._row(
                "UPDATE boxd.volume SET trashed_until = NULL, workspace = $2 WHERE id = $1 "
                "RETURNING id",
                volume_id,
                workspace,
            )
        except asyncpg.UniqueViolationError:
            raise Conflict("the workspace already has a volume") from None
        if row is None:
            raise NotFound("no such volume")
