"""Settings of the installation in PostgreSQL."""

from __future__ import annotations

from boxd.store.postgres.pool import PostgresPool


class PostgresSettings(PostgresPool):
    """The table `setting`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def setting(self, name: str) -> str | None:
        row = await self._row("SELECT value FROM boxd.setting WHERE name = $1", name)
        return None if row is None else row["value"]

    async def put_setting(self, name: str, value: str) -> None:
        await self._execute(
            "INSERT INTO boxd.setting (name, value) VALUES ($1, $2) "
            "ON CONFLICT (name) DO UPDATE SET value = $2",
            name,
            value,
        )
