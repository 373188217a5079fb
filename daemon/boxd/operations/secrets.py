"""Secrets: environment variables of an owner's sessions and commands. No call returns a value.

A secret of tier `account` applies in all workspaces. One of tier `workspace` applies in one
workspace, and overrides a secret of the account there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.authz import Action, Target, checked_workspace, require
from boxd.errors import Forbidden, NotFound, QuotaExceeded
from boxd.model.secret import StoredSecret
from boxd.names.variable import check_value, parse_variable
from boxd.names.words import DEFAULT_WORKSPACE, shown

if TYPE_CHECKING:
    from boxd.clock import Clock
    from boxd.model.secret import Tier
    from boxd.operations.shared.vault import Vault
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.principal import Principal
    from boxd.secret import Secret
    from boxd.store.interface import ControlStore

MAX_SECRETS = 100
"""Maximum number of secrets of one owner."""
MAX_SEALED = 256 * 1024
"""Maximum size of the sealed secrets of one owner, in bytes. A process's environment must hold
them."""


class SecretOperations:
    """Records, lists and removes secrets.

    Critical section: `_adding` is held between measuring an owner's secrets and adding one.
    """

    def __init__(
        self, store: ControlStore, vault: Vault, registry: WorkspaceRegistry, clock: Clock
    ) -> None:
        self._store = store
        self._vault = vault
        self._registry = registry
        self._clock = clock
        self._adding = asyncio.Lock()

    async def set_secret(
        self, p: Principal, name: str, value: Secret, *, tier: Tier, ws: str | None = None
    ) -> tuple[StoredSecret, bool]:
        """Record a secret, and create its workspace if needed; return it and whether it is new.

        It replaces an older secret of the same name and place. Running processes keep the old
        value. Raises BadRequest, TooLarge, QuotaExceeded.
        """
        require(p, Action.CHANGE_SECRETS)
        name = parse_variable(name, "secret")
        check_value(value, "secret")
        workspace = _place(p, tier, ws)
        if workspace is not None:
            await self._registry.ensure(p, workspace)
        sealed = self._vault.seal_secret(p.owner, tier, workspace, name, value)
        secret = StoredSecret(p.owner, tier, workspace, name, sealed, self._clock.now())
        async with self._adding:
            return secret, await self._put(secret)

    async def _put(self, secret: StoredSecret) -> bool:
        """Record a secret if the limits allow it; return whether it is new."""
        present = await self._store.secrets(secret.owner)
        others = [one for one in present if not _same(one, secret)]
        if len(others) + 1 > MAX_SECRETS:
            raise QuotaExceeded(f"limit reached: {MAX_SECRETS} secrets per owner; {_REMEDY}")
        if sum(len(one.sealed) for one in (*others, secret)) > MAX_SEALED:
            raise QuotaExceeded(
                f"limit reached: {MAX_SEALED // 1024} KiB of secrets per owner; {_REMEDY}"
            )
        await self._store.put_secret(secret)
        return len(others) == len(present)

    async def list_secrets(self, p: Principal, ws: str | None = None) -> list[StoredSecret]:
        """Return the secrets that the caller can see, or those of one workspace, without values."""
        require(p, Action.LIST_SECRETS)
        workspace = checked_workspace(p, ws)
        stored = await self._store.secrets(p.owner)
        if workspace is None:
            return stored
        return [one for one in stored if (one.tier, one.workspace) == ("workspace", workspace)]

    async def remove_secret(
        self, p: Principal, name: str, *, tier: Tier, ws: str | None = None
    ) -> StoredSecret:
        """Remove a secret and return it; running processes keep it. Raises NotFound."""
        require(p, Action.CHANGE_SECRETS)
        workspace = _place(p, tier, ws)
        for one in await self._store.secrets(p.owner):
            if (one.tier, one.workspace, one.name) == (tier, workspace, name):
                await self._store.remove_secret(p.owner, tier, workspace, name)
                return one
        where = (
            "your account" if tier == "account" else f"workspace {workspace or DEFAULT_WORKSPACE}"
        )
        raise NotFound(f"no secret {shown(name)} in {where}; see: secret ls")


_REMEDY = "remove one: secret rm NAME"


def _place(p: Principal, tier: Tier, ws: str | None) -> str | None:
    """Return the workspace of a tier; None: the default workspace, or the whole account."""
    workspace = checked_workspace(p, ws)
    if tier == "account":
        if p.scope is not None:
            raise Forbidden(f"this credential is confined to workspace {p.scope}")
        return None
    require(p, Action.CHANGE_SECRETS, Target(p.owner, workspace))
    return workspace


def _same(one: StoredSecret, other: StoredSecret) -> bool:
    return (one.tier, one.workspace, one.name) == (other.tier, other.workspace, other.name)
