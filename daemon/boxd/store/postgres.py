"""ControlStore in PostgreSQL, a group of tables in each of the other files.

Every method is one statement, so it is atomic by itself.
"""

from __future__ import annotations

from boxd.store.postgres_accounts import PostgresAccounts
from boxd.store.postgres_boxes import PostgresBoxes
from boxd.store.postgres_keys import PostgresKeys
from boxd.store.postgres_secrets import PostgresSecrets
from boxd.store.postgres_settings import PostgresSettings
from boxd.store.postgres_shares import PostgresShares
from boxd.store.postgres_snapshots import PostgresSnapshots
from boxd.store.postgres_workspaces import PostgresWorkspaces


class PostgresStore(
    PostgresBoxes,
    PostgresSnapshots,
    PostgresKeys,
    PostgresShares,
    PostgresWorkspaces,
    PostgresAccounts,
    PostgresSecrets,
    PostgresSettings,
):
    """All of ControlStore on one pool; see `PostgresPool` for how it is made."""
