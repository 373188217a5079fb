"""API keys: making, listing and revoking them, and whom a presented one stands for."""

from __future__ import annotations

from datetime import timedelta

from boxd.authz import Action, require
from boxd.errors import BadRequest, InvalidKey, NotFound
from boxd.model.key import ApiKey
from boxd.names.words import parse_key_name, parse_workspace, shown
from boxd.operations.core import Core
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex

KEY_PREFIX = "svc_"
MAX_PRESENTED = 4096
"""Bytes of a presented key that are looked at."""


class KeyOperations(Core):
    """See the module."""

    async def create_key(
        self, p: Principal, name: str, *, scope: str | None, ttl: timedelta | None
    ) -> tuple[ApiKey, Secret]:
        """Makes an API key; the Secret is the only time it is seen. Conflict for a taken name."""
        require(p, Action.CREATE_KEY)
        name = parse_key_name(name)
        if ttl is not None and ttl <= timedelta(0):
            raise BadRequest("the ttl of a key must be positive; for example --ttl 30d")
        async with self._minting:
            self._tier_of(p.owner).check_keys(len(await self._store.keys(p.owner)))
            if scope is not None:
                scope = parse_workspace(scope)
                await self._ensure_workspace(p, scope)
            now = self._clock.now()
            secret = Secret(KEY_PREFIX + random_hex(20))
            expires = None if ttl is None else now + ttl
            key = ApiKey(random_hex(16), p.owner, name, scope, now, expires, None)
            await self._store.add_key(key, digest(secret.reveal()))
        return key, secret

    async def list_keys(self, p: Principal) -> list[ApiKey]:
        """The API keys of the owner, oldest first."""
        require(p, Action.LIST_KEYS)
        return await self._store.keys(p.owner)

    async def remove_key(self, p: Principal, name: str) -> None:
        """Revokes an API key and ends what it holds open. NotFound.

        Unavailable when the database does not answer; what the key holds open has ended then too.
        """
        require(p, Action.REMOVE_KEY)
        await self._revoke_key(p.owner, name)

    async def _revoke_key(self, owner: str, name: str) -> None:
        """See `remove_key`."""
        found = [key for key in await self._store.keys(owner) if key.name == name]
        if not found:
            raise NotFound(f"no API key {shown(name)}; see: apikeys ls")
        for key in found:
            try:
                await self._store.remove_key(key.id)
            finally:
                self._lifecycle.attachments.end_key(key.id, f"API key {key.name} was revoked")

    async def principal_of_key(self, presented: str | None) -> Principal:
        """The principal of a presented API key. Every failure is the same InvalidKey; Forbidden
        for a key that is good, and its owner blocked."""
        if presented is None or len(presented) > MAX_PRESENTED:
            presented = ""  # Looked up too: no answer may come sooner than that to an unknown one.
        key = await self._store.find_key(digest(presented), self._clock.now())
        if key is None:
            raise InvalidKey
        self._gate.check_owner(key.owner)
        self._key_uses.touch(key.id)
        p = Principal(key.owner, key.scope, "api_key", key.id, expires=key.expires)
        self.seen(p, has_something=True)
        return p
