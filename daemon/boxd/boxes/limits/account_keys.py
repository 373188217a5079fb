"""Which account each SSH key opens, in memory: authentication cannot wait for the database.

An account is named by the fingerprint of its first key. Further keys are linked to it. A removed
key opens no account: neither the one that it was removed from, nor one of its own.

Critical section: `changing` is held around each change, from its checks to the change of the
memory, which follows the commit in the database. The changes run to their end even if their caller
is cancelled, so that both agree. Besides these, only `start` awaits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.cancellation import settled
from boxd.errors import Forbidden
from boxd.model.access.account_key import AccountKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from boxd.principal import Principal
    from boxd.store.interface import ControlStore

    EndConnections = Callable[[str, str, "Principal | None"], None]
    """Ends the SSH connections with a key. Arguments: the fingerprint, the reason for the user, and
    the principal whose connection stays."""

REMOVED = (
    "this key was removed from its account, and opens no account of this service; "
    "connect with another key: ssh -i KEY -o IdentitiesOnly=yes"
)
MOVED = "this key has joined another account; connect again"


class AccountKeys:
    """The accounts of SSH keys. Before `start`, each key opens the account of its fingerprint."""

    def __init__(self, store: ControlStore) -> None:
        self._store = store
        self._accounts: dict[str, str] = {}
        self._removed: set[str] = set()
        self._enders: list[EndConnections] = []
        self.changing = asyncio.Lock()

    async def start(self) -> None:
        """Read the keys of the store. Raises Unavailable."""
        for key in await self._store.account_keys():
            self._learn(key)

    def account_of(self, fingerprint: str) -> str | None:
        """Return the account that a key opens. None: the key was removed from its account."""
        if fingerprint in self._removed:
            return None
        return self._accounts.get(fingerprint, fingerprint)

    def is_recorded(self, fingerprint: str) -> bool:
        """Return whether the key has a row: it was linked, or keys were linked to its account."""
        return fingerprint in self._accounts

    def check(self, p: Principal) -> None:
        """Check that the SSH key of a login still opens the account. Raises Forbidden."""
        account = self.account_of(p.fingerprint)
        if account is None:
            raise Forbidden(REMOVED)
        if account != p.owner:
            raise Forbidden(MOVED)

    async def add(self, key: AccountKey, code: bytes | None, p: Principal) -> None:
        """Link a key to an account, and end its other connections. The caller holds `changing`.

        `code` and errors: `ControlStore.add_account_key`. The connection of `p` stays open for its
        answer; it can do nothing else.
        """

        async def change() -> None:
            first = AccountKey.first_of(key.owner)
            await self._store.add_account_key(key, first, code)
            self._learn(key)
            self._accounts.setdefault(first.fingerprint, first.owner)
            self._end(key.fingerprint, MOVED, p)

        await settled(change())

    async def remove(self, key: AccountKey, when: datetime) -> None:
        """Remove a key from its account, and end its connections. The caller holds `changing`.

        Raises what `ControlStore.remove_account_key` raises.
        """

        async def change() -> None:
            await self._store.remove_account_key(key.owner, key.fingerprint, when)
            self._removed.add(key.fingerprint)
            self._end(key.fingerprint, REMOVED, None)

        await settled(change())

    def on_change(self, end: EndConnections) -> None:
        """Call `end` whenever a key no longer opens the account that it opened before."""
        self._enders.append(end)

    def _learn(self, key: AccountKey) -> None:
        self._accounts[key.fingerprint] = key.owner
        if key.removed is not None:
            self._removed.add(key.fingerprint)

    def _end(self, fingerprint: str, reason: str, spared: Principal | None) -> None:
        for end in self._enders:
            end(fingerprint, reason, spared)
