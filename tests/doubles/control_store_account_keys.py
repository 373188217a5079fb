"""SSH keys and recovery codes of accounts in ControlStore, in memory; see `memory`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from boxd.model.access.account_key import AccountKey


class MemoryAccountKeys:
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._account_keys: dict[str, AccountKey] = {}
        self._recovery_codes: dict[bytes, str] = {}

    async def owns_anything(self, owner: str) -> bool:
        """See ControlStore."""
        names = ("boxes", "snapshots", "keys", "workspaces", "secrets", "asks", "volumes")
        tables = [getattr(self, f"_{name}") for name in names]
        rows = [row for table in tables for row in table.values()]
        rows = [row[0] if isinstance(row, tuple) else row for row in rows]
        owners = {row.owner for row in [*rows, *self._account_keys.values()]}
        owners |= {place[0] for place in (*self._objects("profiles"), *self._objects("canvases"))}
        owners |= {*self._objects("agents"), *self._recovery_codes.values()}
        return owner in owners

    def _objects(self, name: str) -> list[tuple[str, ...]]:
        return list(getattr(self, f"_{name}"))

    async def account_keys(self, owner: str | None = None) -> list[AccountKey]:
        """See ControlStore."""
        return sorted(
            (key for key in self._account_keys.values() if owner in (None, key.owner)),
            key=lambda key: (key.added is not None, key.added or 0, key.fingerprint),
        )

    async def add_account_key(
        self, key: AccountKey, first: AccountKey, code: bytes | None = None
    ) -> None:
        """See ControlStore."""
        present = self._account_keys.get(key.fingerprint)
        if present is not None:
            if (present.owner, present.name, present.added) == (key.owner, key.name, key.added):
                return
            raise Conflict("the key belongs to an account already")
        if code is not None and self._recovery_codes.get(code) != key.owner:
            raise NotFound("no such recovery code")
        if await self.owns_anything(key.fingerprint):
            raise Conflict("the key owns objects itself")
        if any(one.name == key.name for one in self._in_use(key.owner)):
            raise Conflict(f"the account has another key named {key.name}")
        if code is not None:
            del self._recovery_codes[code]
        self._account_keys.setdefault(first.fingerprint, first)
        self._account_keys[key.fingerprint] = key

    async def remove_account_key(self, owner: str, fingerprint: str, when: datetime) -> None:
        """See ControlStore."""
        key = self._account_keys.get(fingerprint)
        if key is None or key.owner != owner:
            raise NotFound("no such key")
        if key.removed is None:
            if self._in_use(owner) == [key]:
                raise Conflict("the only key of an account cannot be removed")
            self._account_keys[fingerprint] = replace(key, removed=when)

    async def touch_account_key(self, fingerprint: str, when: datetime) -> None:
        """See ControlStore."""
        if (key := self._account_keys.get(fingerprint)) is not None:
            latest = when if key.last_used is None else max(when, key.last_used)
            self._account_keys[fingerprint] = replace(key, last_used=latest)

    async def put_recovery_codes(
        self, owner: str, digests: Sequence[bytes], created: datetime
    ) -> None:
        """See ControlStore."""
        del created
        others = {code: one for code, one in self._recovery_codes.items() if one != owner}
        self._recovery_codes = others | dict.fromkeys(digests, owner)

    async def recovery_codes(self, owner: str) -> int:
        """See ControlStore."""
        return list(self._recovery_codes.values()).count(owner)

    async def find_recovery_code(self, sha256: bytes) -> str | None:
        """See ControlStore."""
        return self._recovery_codes.get(sha256)

    def _in_use(self, owner: str) -> list[AccountKey]:
        keys = self._account_keys.values()
        return [key for key in keys if key.owner == owner and key.removed is None]
