"""Authenticated callers: admission, source addresses and last use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.operations.shared.key_use import LastUses

if TYPE_CHECKING:
    from boxd.boxes.limits.access_policy import AccessPolicy
    from boxd.boxes.limits.account_keys import AccountKeys
    from boxd.boxes.limits.source_addresses import SourceAddresses
    from boxd.clock import Clock
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore


class Callers:
    """Admits principals, and records when their keys and owners were last active."""

    def __init__(
        self,
        store: ControlStore,
        clock: Clock,
        access_policy: AccessPolicy,
        account_keys: AccountKeys,
        sources: SourceAddresses,
    ) -> None:
        self.access_policy = access_policy
        self.account_keys = account_keys
        self._sources = sources
        self.key_uses = LastUses(store.touch_key, clock)
        self.account_key_uses = LastUses(store.touch_account_key, clock)
        self.share_uses = LastUses(store.touch_share, clock)
        self.owner_uses = LastUses(store.touch_account, clock)

    async def close(self) -> None:
        """Wait for pending writes; the store's own deadline bounds the wait."""
        await self.key_uses.close()
        await self.account_key_uses.close()
        await self.share_uses.close()
        await self.owner_uses.close()

    def seen(self, p: Principal, *, has_something: bool = False) -> None:
        """Record in the background that an owner is active.

        SSH keys cost nothing, so the service records an unknown owner only once it owns an object
        (`has_something`).
        """
        if p.via == "share":
            return  # the holder of a share is not the owner
        if has_something:
            self.access_policy.learn(p.owner)
        if self.access_policy.knows(p.owner):
            self.owner_uses.touch(p.owner)
        if p.via == "ssh_key" and self.account_keys.is_recorded(p.fingerprint):
            self.account_key_uses.touch(p.fingerprint)

    def check_admitted(self, p: Principal) -> None:
        """Raise Forbidden if the operator has blocked the owner or the SSH key.

        The same applies if the SSH key no longer opens the account.
        """
        self.access_policy.check_owner(p.owner)
        if p.via == "ssh_key":
            self.access_policy.check_owner(p.fingerprint)
            self.account_keys.check(p)

    def came(self, p: Principal, address: str) -> None:
        """Record the source address of a principal after its authentication; "": none."""
        self._sources.came(p.owner, address)
