"""Secrets, agent programs and questions in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.errors import Conflict, NotFound
from boxd.model.ask import Ask
from boxd.model.secret import Agent, StoredSecret
from boxd.store.postgres.pool import PostgresPool, insertion, values_of

if TYPE_CHECKING:
    from datetime import datetime

    import asyncpg

    from boxd.model.secret import Tier


class PostgresSecrets(PostgresPool):
    """The tables `secret`, `agent` and `ask`. Sealed values are stored as they are passed in.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def put_secret(self, secret: StoredSecret) -> None:
        await self._execute(
            "INSERT INTO boxd.secret (owner, tier, workspace, name, sealed, updated) "
            "VALUES ($1, $2, $3, $4, $5, $6) "
            "ON CONFLICT (owner, tier, coalesce(workspace, ''), name) "
            "DO UPDATE SET sealed = $5, updated = $6",
            *values_of(secret),
        )

    async def secrets(self, owner: str) -> list[StoredSecret]:
        rows = await self._rows(
            "SELECT * FROM boxd.secret WHERE owner = $1 "
            'ORDER BY tier, coalesce(workspace, \'\') COLLATE "C", name COLLATE "C"',
            owner,
        )
        return [StoredSecret(**row) for row in rows]

    async def remove_secret(self, owner: str, tier: Tier, workspace: str | None, name: str) -> None:
        await self._execute(
            "DELETE FROM boxd.secret WHERE owner = $1 AND tier = $2 "
            "AND coalesce(workspace, '') = coalesce($3, '') AND name = $4",
            owner,
            tier,
            workspace,
            name,
        )

    async def put_agent(self, agent: Agent) -> None:
        await self._execute(
            "INSERT INTO boxd.agent (owner, command, env, format, sealed, updated) "
            "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (owner) "
            "DO UPDATE SET command = $2, env = $3, format = $4, sealed = $5, updated = $6",
            *values_of(agent),
        )

    async def agent(self, owner: str) -> Agent | None:
        row = await self._row("SELECT * FROM boxd.agent WHERE owner = $1", owner)
        return None if row is None else Agent(**row)

    async def remove_agent(self, owner: str) -> None:
        await self._execute("DELETE FROM boxd.agent WHERE owner = $1", owner)

    async def add_ask(self, ask: Ask) -> None:
        await self._execute(insertion("boxd.ask", Ask), *values_of(ask))

    async def asks(self, owner: str) -> list[Ask]:
        rows = await self._rows(
            "SELECT * FROM boxd.ask WHERE owner = $1 ORDER BY created, id", owner
        )
        return [_ask(row) for row in rows]

    async def answer_ask(self, ask_id: str, answer: str, when: datetime) -> Ask:
        # If the first try was committed and its connection broke, the second try finds its own
        # answer with its own time. That counts as success.
        row = await self._row(
            "UPDATE boxd.ask SET answer = $2, answered = $3 "
            "WHERE id = $1 AND answer IS NULL AND expires > $3 RETURNING *",
            ask_id,
            answer,
            when,
            retry_query="SELECT * FROM boxd.ask WHERE id = $1 AND answer = $2 AND answered = $3",
        )
        if row is not None:
            return _ask(row)
        current = await self._row("SELECT * FROM boxd.ask WHERE id = $1", ask_id)
        if current is None:
            raise NotFound("no such question")
        raise Conflict(f"the question is already {_ask(current).state(when)}")

    async def remove_asks(self, before: datetime) -> None:
        await self._execute("DELETE FROM boxd.ask WHERE expires < $1", before)

    async def remove_asks_of(self, owner: str, workspace: str) -> None:
        await self._execute(
            "DELETE FROM boxd.ask WHERE owner = $1 AND workspace = $2", owner, workspace
        )


def _ask(row: asyncpg.Record) -> Ask:
    return Ask(**{**row, "options": tuple(row["options"])})
