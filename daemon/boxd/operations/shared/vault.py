"""Secrets and agent tokens of owners: encrypted in the store, decrypted when they are used.

Each ciphertext is bound to its owner, workspace and variable. An attacker who can write to the
database therefore cannot move a secret to another place.
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
    """Encrypts and decrypts secrets and tokens. Holds no state."""

    def __init__(self, store: ControlStore, sealer: Sealer) -> None:
        self._store = store
        self._sealer = sealer

    def seal_secret(
        self, owner: str, tier: Tier, workspace: str | None, name: str, value: Secret
    ) -> bytes:
        """Return the stored form of a secret."""
        return self._sealer.seal(_secret_place(owner, tier, workspace, name), value.reveal())

    def seal_token(self, owner: str, token: Secret) -> bytes:
        """Return the stored form of the token of an owner's agent."""
        return self._sealer.seal(_agent_place(owner), token.reveal())

    def seal_response(self, owner: str, key_sha256: bytes, body: str) -> bytes:
        """Return the stored form of a response to a request with an idempotency key."""
        return self._sealer.seal(_response_place(owner, key_sha256), body)

    def open_response(self, owner: str, key_sha256: bytes, sealed: bytes) -> str:
        """Return a stored response. Raises Unavailable if it cannot be decrypted."""
        return self._sealer.unseal(_response_place(owner, key_sha256), sealed)

    def open_token(self, agent: Agent) -> Secret:
        """Return the token of an owner's agent. Raises Unavailable if it cannot be decrypted."""
        try:
            return Secret(self._sealer.unseal(_agent_place(agent.owner), agent.sealed))
        except Unavailable as error:
            _log.warning("%s", error)  # not for users: the text names files of the host
            raise Unavailable(
                "the token of your agent can no longer be decrypted; set it again: agent set"
            ) from None

    async def environment(
        self, owner: str, workspace: str | None, *, account: bool
    ) -> dict[str, str]:
        """Return the secrets for processes in a workspace, by variable.

        A secret of the workspace overrides one of the account. Without `account`, the result has no
        secrets of the account. Raises Unavailable even if only one secret cannot be decrypted,
        because a process without that secret could act against its owner's intention.
        """
        values: dict[str, str] = {}
        stored = await self._store.secrets(owner)  # tier `account` comes first
        for one in stored:
            if (account and one.tier == "account") or (
                one.tier == "workspace" and one.workspace == workspace
            ):
                values[one.name] = self._decrypt(one)
        return values

    def _decrypt(self, one: StoredSecret) -> str:
        try:
            place = _secret_place(one.owner, one.tier, one.workspace, one.name)
            return self._sealer.unseal(place, one.sealed)
        except Unavailable as error:
            _log.warning("%s", error)  # not for users: the text names files of the host
            where = f" -w {one.workspace}" if one.workspace else ""
            raise Unavailable(
                f"secret {one.name} can no longer be decrypted; set its value again: "
                f"secret set {one.name}{where}; or: secret rm {one.name}{where}"
            ) from None


def _agent_place(owner: str) -> str:
    return f"agent/{owner}"


def _response_place(owner: str, key_sha256: bytes) -> str:
    return f"response/{owner}/{key_sha256.hex()}"


def _secret_place(owner: str, tier: Tier, workspace: str | None, name: str) -> str:
    return f"secret/{owner}/{tier}/{workspace or ''}/{name}"
