"""Secrets: variables that an owner's sessions and commands get, and nobody is shown.

Tier `account` is in all workspaces, tier `workspace` in one, where it wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.authz import Action, Target, require
from boxd.errors import Forbidden, NotFound, QuotaExceeded
from boxd.model.secret import StoredSecret
from boxd.names.variable import check_value, parse_variable
from boxd.names.words import DEFAULT_WORKSPACE, shown
from boxd.operations.core import Core, checked_workspace

if TYPE_CHECKING:
    from boxd.model.secret import Tier
    from boxd.principal import Principal
    from boxd.secret import Secret

MAX_SECRETS = 100
"""Secrets of one owner."""
MAX_SEALED = 256 * 1024
"""Bytes of all secrets of one owner: they have to fit into the environment of a process."""


class SecretOperations(Core):
    """See the module."""

    async def set_secret(
        self, p: Principal, name: str, value: Secret, *, tier: Tier, ws: str | None = None
    ) -> tuple[StoredSecret, bool]:
        """Records a secret in the place of an older one of its name there; whether it is new.

        What runs already keeps what it has. A workspace that is not there is made. BadRequest,
        TooLarge, QuotaExceeded.
        """
        require(p, Action.CHANGE_SECRETS)
        name = parse_variable(name, "secret")
        check_value(value, "secret")
        workspace = _place(p, tier, ws)
        if workspace is not None:
            await self._ensure_workspace(p, workspace)
        sealed = self._vault.seal_secret(p.owner, tier, workspace, name, value)
        secret = StoredSecret(p.owner, tier, workspace, name, sealed, self._clock.now())
        async with self._minting:
            return secret, await self._put(secret)

    async def _put(self, secret: StoredSecret) -> bool:
        """Records a secret if the limits allow it; whether it is new."""
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
        """The secrets that are the caller's to see, or those of one workspace. Never a value."""
        require(p, Action.LIST_SECRETS)
        workspace = checked_workspace(p, ws)
        found = await self._store.secrets(p.owner)
        if workspace is None:
            return found
        return [one for one in found if (one.tier, one.workspace) == ("workspace", workspace)]

    async def remove_secret(
        self, p: Principal, name: str, *, tier: Tier, ws: str | None = None
    ) -> StoredSecret:
        """Forgets a secret; what runs already keeps it. Returns what it was. NotFound."""
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
    """The workspace of a tier; None: the default one, or the whole account."""
    if tier == "account":
        if p.scope is not None:
            raise Forbidden(f"this credential is confined to workspace {p.scope}")
        return None
    workspace = checked_workspace(p, ws)
    require(p, Action.CHANGE_SECRETS, Target(p.owner, workspace))
    return workspace


def _same(one: StoredSecret, other: StoredSecret) -> bool:
    return (one.tier, one.workspace, one.name) == (other.tier, other.workspace, other.name)
