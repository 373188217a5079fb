"""Snapshots and profiles in PostgreSQL."""

from __future__ import annotations

import asyncpg

from boxd.errors import Conflict
from boxd.model.profile import Profile, ProfileDefaults
from boxd.model.snapshot import Snapshot
from boxd.store.postgres.pool import PostgresPool, insertion, values_of


class PostgresSnapshots(PostgresPool):
    """The tables `snapshot` and `profile`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def add_snapshot(self, snapshot: Snapshot) -> None:
        try:
            await self._execute(insertion("boxd.snapshot", Snapshot), *values_of(snapshot))
        except asyncpg.UniqueViolationError:
            raise Conflict(
                f"snapshot {snapshot.name} of box {snapshot.ref} already exists"
            ) from None

    async def finish_snapshot(self, snapshot_id: str, size_bytes: int) -> None:
        await self._execute(
            "UPDATE boxd.snapshot SET ready = true, size_bytes = $2 WHERE id = $1",
            snapshot_id,
            size_bytes,
        )

    async def rename_snapshot(self, snapshot_id: str, name: str) -> None:
        try:
            await self._execute(
                "UPDATE boxd.snapshot SET name = $2 WHERE id = $1", snapshot_id, name
            )
        except asyncpg.UniqueViolationError:
            raise Conflict(f"a snapshot {name} of that box already exists") from None

    async def snapshots(self, owner: str) -> list[Snapshot]:
        rows = await self._rows(
            "SELECT * FROM boxd.snapshot WHERE owner = $1 ORDER BY created, id", owner
        )
        return [Snapshot(**row) for row in rows]

    async def all_snapshots(self) -> list[Snapshot]:
        rows = await self._rows("SELECT * FROM boxd.snapshot ORDER BY created, id")
        return [Snapshot(**row) for row in rows]

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._execute("DELETE FROM boxd.snapshot WHERE id = $1", snapshot_id)

    async def put_profile(self, owner: str, profile: Profile) -> None:
        defaults = profile.defaults
        await self._execute(
            "INSERT INTO boxd.profile "
            "(owner, name, image, flavor, ttl, grace, egress, durable, snapshot, built_from) "
            "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
            "ON CONFLICT (owner, name) DO UPDATE SET image = $3, flavor = $4, ttl = $5, "
            "grace = $6, egress = $7, durable = $8, snapshot = $9, built_from = $10",
            owner,
            profile.name,
            profile.image,
            defaults.flavor,
            defaults.ttl,
            defaults.grace,
            defaults.egress,
            defaults.durable,
            profile.snapshot,
            profile.built_from,
        )

    async def profiles(self, owner: str) -> list[Profile]:
        rows = await self._rows(
            "SELECT name, image, flavor, ttl, grace, egress, durable, snapshot, built_from "
            'FROM boxd.profile WHERE owner = $1 ORDER BY name COLLATE "C"',
            owner,
        )
        return [_profile(row) for row in rows]

    async def remove_profile(self, owner: str, name: str) -> None:
        await self._execute("DELETE FROM boxd.profile WHERE owner = $1 AND name = $2", owner, name)


def _profile(row: asyncpg.Record) -> Profile:
    return Profile(
        row["name"],
        row["image"],
        ProfileDefaults(
            row["flavor"], row["ttl"], row["grace"], row["egress"], durable=row["durable"]
        ),
        snapshot=row["snapshot"],
        built_from=row["built_from"],
    )
