"""Boxes in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import Conflict, NotFound
from boxd.model.box import TRANSITIONS, Box, BoxChanges, BoxNotes, BoxState
from boxd.store.postgres.pool import PostgresPool, insertion, values_of

if TYPE_CHECKING:
    from typing import Unpack


_CHANGEABLE = {"state", *BoxNotes.__annotations__}
"""The columns that updates may set."""


class PostgresBoxes(PostgresPool):
    """The table `box`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def add_box(self, box: Box) -> None:
        try:
            await self._execute(insertion("boxd.box", Box), *values_of(box))
        except asyncpg.UniqueViolationError:
            raise Conflict(f"box {box.ref} already exists") from None

    async def box(self, box_id: str) -> Box | None:
        row = await self._row("SELECT * FROM boxd.box WHERE id = $1", box_id)
        return None if row is None else _box(row)

    async def boxes(self, owner: str) -> list[Box]:
        rows = await self._rows(
            "SELECT * FROM boxd.box WHERE owner = $1 ORDER BY created, id", owner
        )
        return [_box(row) for row in rows]

    async def find_boxes(
        self, owner: str, workspace: str | None, name: str, id_prefix: str | None = None
    ) -> list[Box]:
        rows = await self._rows(
            "SELECT * FROM boxd.box WHERE owner = $1 AND (name = $3 AND workspace IS NOT DISTINCT "
            "FROM $2 OR starts_with(id, $4)) ORDER BY created, id",
            owner,
            workspace,
            name,
            id_prefix,
        )
        return [_box(row) for row in rows]

    async def all_boxes(self) -> list[Box]:
        rows = await self._rows("SELECT * FROM boxd.box ORDER BY created, id")
        return [_box(row) for row in rows]

    async def change_state(
        self,
        box_id: str,
        before: BoxState,
        after: BoxState,
        detail: str = "",
        **changes: Unpack[BoxChanges],
    ) -> Box:
        # If the first try was committed and its connection broke, the second try finds the new
        # state and detail. That counts as success.
        if (before, after) in TRANSITIONS:
            row = await self._row(
                _update(["state", "detail", *changes], first=3) + " AND state = $2 RETURNING *",
                box_id,
                before.value,
                after.value,
                detail,
                *changes.values(),
                retry_query="SELECT * FROM boxd.box WHERE id = $1 AND state <> $2 "
                "AND state = $3 AND detail = $4",
                retry_values=(box_id, before.value, after.value, detail),
            )
            if row is not None:
                return _box(row)
        box = await self.box(box_id)
        if box is None:
            raise NotFound("no such box")
        raise Conflict(f"box {box.ref} is {box.state}: it cannot go from {before} to {after}")

    async def change_box(self, box_id: str, **changes: Unpack[BoxNotes]) -> None:
        if changes:
            await self._execute(_update(list(changes), first=2), box_id, *changes.values())

    async def remove_box(self, box_id: str) -> None:
        await self._execute("DELETE FROM boxd.box WHERE id = $1", box_id)


def _update(names: list[str], first: int) -> str:
    """Return an UPDATE of columns of the box $1; `first` is the parameter of the first column."""
    fixed = set(names) - _CHANGEABLE
    if fixed:
        raise ValueError(f"columns of a box that cannot change: {', '.join(sorted(fixed))}")
    sets = ", ".join(f"{name} = ${number}" for number, name in enumerate(names, first))
    return f"UPDATE boxd.box SET {sets} WHERE id = $1"  # noqa: S608  the names are checked


def _box(row: asyncpg.Record) -> Box:
    return Box(**{**row, "state": BoxState(row["state"])})
