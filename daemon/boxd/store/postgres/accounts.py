"""Accounts and audit entries in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.account import Account, Audit
from boxd.store.postgres.pool import PostgresPool, insertion, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


class PostgresAccounts(PostgresPool):
    """The tables `account` and `audit`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def accounts(self) -> list[Account]:
        rows = await self._rows('SELECT * FROM boxd.account ORDER BY owner COLLATE "C"')
        return [Account(**row) for row in rows]

    async def set_tier(self, owner: str, tier: str | None) -> None:
        await self._execute(
            "INSERT INTO boxd.account (owner, tier) VALUES ($1, $2) "
            "ON CONFLICT (owner) DO UPDATE SET tier = $2",
            owner,
            tier,
        )

    async def set_blocked(self, owner: str, since: datetime | None) -> None:
        await self._execute(
            "INSERT INTO boxd.account (owner, blocked) VALUES ($1, $2) "
            "ON CONFLICT (owner) DO UPDATE SET blocked = $2",
            owner,
            since,
        )

    async def touch_account(self, owner: str, when: datetime) -> None:
        await self._execute(
            "INSERT INTO boxd.account AS a (owner, last_seen) VALUES ($1, $2) "
            "ON CONFLICT (owner) DO UPDATE SET last_seen = greatest(a.last_seen, $2)",
            owner,
            when,
        )

    async def account(self, owner: str) -> Account:
        row = await self._row("SELECT * FROM boxd.account WHERE owner = $1", owner)
        return Account(owner) if row is None else Account(**row)

    async def set_account_name(self, owner: str, name: str | None) -> None:
        await self._execute(
            "INSERT INTO boxd.account (owner, name) VALUES ($1, $2) "
            "ON CONFLICT (owner) DO UPDATE SET name = $2",
            owner,
            name,
        )

    async def add_audit(self, entry: Audit) -> None:
        await self._execute(insertion("boxd.audit", Audit), *values_of(entry))

    async def finish_audit(self, audit_id: str, status: int, owners: Sequence[str] = ()) -> None:
        await self._execute(
            "UPDATE boxd.audit SET status = $2, owners = $3 WHERE id = $1",
            audit_id,
            status,
            list(owners),
        )

    async def audits(self, limit: int, owner: str | None = None) -> list[Audit]:
        rows = await self._rows(
            "SELECT * FROM boxd.audit WHERE $2::text IS NULL OR $2 = ANY (owners) "
            "ORDER BY at DESC, id DESC LIMIT $1",
            limit,
            owner,
        )
        return [Audit(**{**row, "owners": tuple(row["owners"])}) for row in rows]
