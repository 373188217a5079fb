"""The control store in PostgreSQL. Each of the other modules has one group of tables.

Each method is one statement, so it is atomic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.model.end import End
from boxd.store.postgres.account_keys import PostgresAccountKeys
from boxd.store.postgres.accounts import PostgresAccounts
from boxd.store.postgres.boxes import PostgresBoxes
from boxd.store.postgres.canvases import PostgresCanvases
from boxd.store.postgres.idempotent import PostgresIdempotent
from boxd.store.postgres.keys import PostgresKeys
from boxd.store.postgres.proxy import PostgresProxy
from boxd.store.postgres.secrets import PostgresSecrets
from boxd.store.postgres.settings import PostgresSettings
from boxd.store.postgres.shares import PostgresShares
from boxd.store.postgres.snapshots import PostgresSnapshots
from boxd.store.postgres.workspaces import PostgresWorkspaces

if TYPE_CHECKING:
    from datetime import datetime


class PostgresStore(
    PostgresBoxes,
    PostgresSnapshots,
    PostgresKeys,
    PostgresShares,
    PostgresProxy,
    PostgresWorkspaces,
    PostgresAccounts,
    PostgresAccountKeys,
    PostgresSecrets,
    PostgresCanvases,
    PostgresIdempotent,
    PostgresSettings,
):
    """All tables on one connection pool, as `PostgresPool` creates it.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def ends(self, now: datetime) -> list[End]:
        rows = await self._rows(
            "SELECT 'canvas' AS what, owner, scope AS workspace, id, expires AS at "
            "FROM boxd.canvas WHERE expires > $1 UNION ALL "
            "SELECT 'ask', owner, workspace, id, expires "
            "FROM boxd.ask WHERE answer IS NULL AND expires > $1",
            now,
        )
        return [End(**row) for row in rows]
