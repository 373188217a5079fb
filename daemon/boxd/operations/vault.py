"""What owners entrust to the service: sealed before it is stored, and opened for its one use.

What is sealed is bound to its place, so that nobody who can write to the database can have another
owner, workspace or variable get it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from boxd.errors import Unavailable
from boxd.secret import Secret

if TYPE_CHECKING:
    from boxd.model.secret import Agent, StoredSecret, Tier
    from boxd.store.interface import ControlStore
    from boxd.workspaces.seal import Sealer


_log = logging.getLogger(__name__)


class Vault:
    """See the module. Stateless."""

    def __init__(self, store: ControlStore, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer

    def seal_secret(
        self, owner: str, tier: Tier, workspace: str | None, name: str, value: Secret
    ) -> bytes:
        """The stored form of a secret of that place."""
        return self._sealer.seal(_secret_place(owner, tier, workspace, name), value.reveal())

    def seal_token(self, owner: str, token: Secret) -> bytes:
        """The stored form of the token of an owner's agent."""
        return self._sealer.seal(_agent_place(owner), token.reveal())

    def open_token(self, agent: Agent) -> Secret:
        """The token of an owner's agent. Unavailable when it cannot be opened."""
        try:
            return Secret(self._sealer.unseal(_agent_place(agent.owner), agent.sealed))
        except Unavailable as error:
            _log.warning("%s", error)  # it names files of the host
            raise Unavailable(
                "the token of your agent cannot be opened any more; give it again: agent set"
            ) from None

    async def environment(
        self, owner: str, workspace: str | None, *, account: bool
    ) -> dict[str, str]:
        """The secrets for what an owner starts in a workspace; the workspace's own win.

        `account` off: without those of the whole account. Unavailable, also when one cannot be
        opened: what is started without it could do something else than its owner wants.
        """
        found: dict[str, str] = {}
        stored = await self._store.secrets(owner)  # tier `account` comes first
        for one in stored:
            if (account and one.tier == "account") or (
                one.tier == "workspace" and one.workspace == workspace
            ):
                found[one.name] = self._opened(one)
        return found

    def _opened(self, one: StoredSecret) -> str:
        try:
            place = _secret_place(one.owner, one.tier, one.workspace, one.name)
            return self._sealer.unseal(place, one.sealed)
        except Unavailable as error:
            _log.warning("%s", error)  # it names files of the host
            where = f" -w {one.workspace}" if one.workspace else ""
            raise Unavailable(
                f"secret {one.name} cannot be opened any more; give its value again: "
                f"secret set {one.name}{where}; or: secret rm {one.name}{where}"
            ) from None


def _agent_place(owner: str) -> str:
    return f"agent/{owner}"


def _secret_place(owner: str, tier: Tier, workspace: str | None, name: str) -> str:
    return f"secret/{owner}/{tier}/{workspace or ''}/{name}"
