"""Accounts and the audit of ControlStore in memory; see `memory`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.model.account import Account

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from boxd.model.account import Audit


class MemoryAccounts:
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._accounts: dict[str, Account] = {}
        self._audits: dict[str, Audit] = {}

    async def accounts(self) -> list[Account]:
        """See ControlStore."""
        return [account for _, account in sorted(self._accounts.items())]

    async def set_tier(self, owner: str, tier: str | None) -> None:
        """See ControlStore."""
        self._accounts[owner] = replace(self._account(owner), tier=tier)

    async def set_blocked(self, owner: str, since: datetime | None) -> None:
        """See ControlStore."""
        self._accounts[owner] = replace(self._account(owner), blocked=since)

    async def touch_account(self, owner: str, when: datetime) -> None:
        """See ControlStore."""
        account = self._account(owner)
        latest = when if account.last_seen is None else max(when, account.last_seen)
        self._accounts[owner] = replace(account, last_seen=latest)

    async def account(self, owner: str) -> Account:
        """See ControlStore."""
        return self._account(owner)

    async def set_account_name(self, owner: str, name: str | None) -> None:
        """See ControlStore."""
        self._accounts[owner] = replace(self._account(owner), name=name)

    async def add_audit(self, entry: Audit) -> None:
        """See ControlStore."""
        self._audits.setdefault(entry.id, entry)

    async def finish_audit(self, audit_id: str, status: int, owners: Sequence[str] = ()) -> None:
        """See ControlStore."""
        if audit_id in self._audits:
            entry = self._audits[audit_id]
            self._audits[audit_id] = replace(entry, status=status, owners=tuple(owners))

    async def audits(self, limit: int, owner: str | None = None) -> list[Audit]:
        """See ControlStore."""
        chosen = [one for one in self._audits.values() if owner in (None, *one.owners)]
        return sorted(chosen, key=lambda one: (one.at, one.id), reverse=True)[:limit]

    def _account(self, owner: str) -> Account:
        return self._accounts.get(owner, Account(owner))
