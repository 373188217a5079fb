"""The table of boxes in PostgreSQL; see ControlStore for every method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import Conflict, NotFound
from boxd.model.box import TRANSITIONS, Box, BoxState
from boxd.store.postgres_pool import PostgresPool, values_of

if TYPE_CHECKING:
    from datetime import timedelta


class PostgresBoxes(PostgresPool):
    """See the module."""

    async def add_box(self, box: Box) -> None:
        """See ControlStore."""
        try:
            await self._execute(
                "INSERT INTO boxd.box (id, owner, workspace, name, image, flavor, cpus, mem_mb, "
                "state, detail, backend, host_key, created, deadline, grace, ephemeral, drive) "
                "VALUES "
                "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) "
                "ON CONFLICT (id) DO NOTHING",
                *values_of(box),
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


def _box(row: asyncpg.Record) -> Box:
    return Box(**{**row, "state": BoxState(row["state"])})
