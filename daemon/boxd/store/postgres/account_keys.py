"""SSH keys and recovery codes of accounts in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from boxd.errors import Conflict, NotFound
from boxd.model.access.account_key import AccountKey
from boxd.store.postgres.pool import PostgresPool, values_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

_OBJECTS = (
    "box",
    "snapshot",
    "profile",
    "api_key",
    "workspace",
    "volume",
    "secret",
    "agent",
    "ask",
    "canvas",
    "recovery_code",
    "account_key",
)
"""Tables whose rows are objects of an owner. Shares and browser sessions have a box."""
_OWNS = " OR ".join(f"EXISTS (SELECT FROM boxd.{table} WHERE owner = $1)" for table in _OBJECTS)
# All parts of the statement see the same rows. The code is deleted only if the key is inserted.
_ADD = """
    WITH free AS (
        SELECT WHERE NOT (OWNS)
            AND NOT EXISTS (SELECT FROM boxd.account_key WHERE fingerprint = $1)
    ), code AS (
        DELETE FROM boxd.recovery_code
        WHERE sha256 = $9 AND owner = $2 AND EXISTS (SELECT FROM free)
        RETURNING sha256
    ), allowed AS (
        SELECT FROM free WHERE $9::bytea IS NULL OR EXISTS (SELECT FROM code)
    ), first AS (
        INSERT INTO boxd.account_key (fingerprint, owner, name, public_key)
        SELECT $2, $2, $8, '' FROM allowed ON CONFLICT (fingerprint) DO NOTHING
    )
    INSERT INTO boxd.account_key
        (fingerprint, owner, name, public_key, added, last_used, removed)
    SELECT $1, $2, $3, $4, $5, $6, $7 FROM allowed RETURNING fingerprint
""".replace("OWNS", _OWNS)


class PostgresAccountKeys(PostgresPool):
    """The tables `account_key` and `recovery_code`.

    Implements `ControlStore`; the protocol documents each method.
    """

    async def owns_anything(self, owner: str) -> bool:
        row = await self._row(f"SELECT ({_OWNS}) AS owns", owner)
        return row is not None and bool(row["owns"])

    async def account_keys(self, owner: str | None = None) -> list[AccountKey]:
        rows = await self._rows(
            "SELECT * FROM boxd.account_key WHERE $1::text IS NULL OR owner = $1 "
            'ORDER BY added NULLS FIRST, fingerprint COLLATE "C"',
            owner,
        )
        return [AccountKey(**row) for row in rows]

    async def add_account_key(
        self, key: AccountKey, first: AccountKey, code: bytes | None = None
    ) -> None:
        try:
            row = await self._row(_ADD, *values_of(key), first.name, code)
        except asyncpg.UniqueViolationError:
            raise Conflict(f"the account has another key named {key.name}") from None
        if row is None and not await self._is_added(key):
            await self._explain(key, code)

    async def _is_added(self, key: AccountKey) -> bool:
        """Return whether an earlier try added the key before its connection broke."""
        row = await self._key(key.fingerprint)
        return row is not None and (row.owner, row.name, row.added) == (
            key.owner,
            key.name,
            key.added,
        )

    async def _explain(self, key: AccountKey, code: bytes | None) -> None:
        """Raise the reason why a key was not added."""
        if await self._key(key.fingerprint) is not None:
            raise Conflict("the key belongs to an account already")
        if code is not None and await self.find_recovery_code(code) != key.owner:
            raise NotFound("no such recovery code")
        raise Conflict("the key owns objects itself")

    async def _key(self, fingerprint: str) -> AccountKey | None:
        row = await self._row("SELECT * FROM boxd.account_key WHERE fingerprint = $1", fingerprint)
        return None if row is None else AccountKey(**row)

    async def remove_account_key(self, owner: str, fingerprint: str, when: datetime) -> None:
        await self._execute(
            "UPDATE boxd.account_key SET removed = $3 "
            "WHERE owner = $1 AND fingerprint = $2 AND removed IS NULL AND EXISTS ("
            "SELECT FROM boxd.account_key AS other WHERE other.owner = $1 "
            "AND other.fingerprint <> $2 AND other.removed IS NULL)",
            owner,
            fingerprint,
            when,
        )
        key = await self._key(fingerprint)
        if key is None or key.owner != owner:
            raise NotFound("no such key")
        if key.removed is None:
            raise Conflict("the only key of an account cannot be removed")

    async def touch_account_key(self, fingerprint: str, when: datetime) -> None:
        await self._execute(
            "UPDATE boxd.account_key SET last_used = greatest(last_used, $2) "
            "WHERE fingerprint = $1",
            fingerprint,
            when,
        )

    async def put_recovery_codes(
        self, owner: str, digests: Sequence[bytes], created: datetime
    ) -> None:
        await self._execute(
            "WITH replaced AS ("
            "DELETE FROM boxd.recovery_code WHERE owner = $1 AND sha256 <> ALL ($2::bytea[])) "
            "INSERT INTO boxd.recovery_code (sha256, owner, created) "
            "SELECT unnest($2::bytea[]), $1, $3 ON CONFLICT (sha256) DO NOTHING",
            owner,
            list(digests),
            created,
        )

    async def recovery_codes(self, owner: str) -> int:
        rows = await self._rows("SELECT FROM boxd.recovery_code WHERE owner = $1", owner)
        return len(rows)

    async def find_recovery_code(self, sha256: bytes) -> str | None:
        row = await self._row("SELECT owner FROM boxd.recovery_code WHERE sha256 = $1", sha256)
        return None if row is None else str(row["owner"])
