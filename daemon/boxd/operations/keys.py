"""API keys: create, list, revoke and authenticate them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import BadRequest, InvalidKey, NotFound
from boxd.model.access.key import ApiKey
from boxd.names.words import parse_key_name, parse_workspace, shown
from boxd.principal import Principal
from boxd.secret import Secret, digest, random_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.limits.tier_limits import Tier
    from boxd.boxes.presence.attachments import Attachments
    from boxd.clock import Clock
    from boxd.operations.shared.callers import Callers
    from boxd.operations.shared.workspace_registry import WorkspaceRegistry
    from boxd.store.interface import ControlStore

KEY_PREFIX = "svc_"
MAX_PRESENTED = 4096
"""Maximum size of a presented key, in bytes; a longer key is invalid."""


class KeyOperations:
    """Creates, lists, revokes and authenticates API keys.

    Critical section: `_adding` is held between counting an owner's keys and adding one.
    """

    def __init__(
        self,
        store: ControlStore,
        registry: WorkspaceRegistry,
        attachments: Attachments,
        callers: Callers,
        tier_of: Callable[[str], Tier],
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._attachments = attachments
        self._callers = callers
        self._tier_of = tier_of
        self._clock = clock
        self._adding = asyncio.Lock()

    async def create_key(
        self, p: Principal, name: str, *, scope: str | None, ttl: timedelta | None
    ) -> tuple[ApiKey, Secret]:
        """Create an API key; the service shows the returned Secret once, and stores its hash.

        `ttl` None: the key does not expire. Raises Conflict if the name is taken, NotFound if
        `scope` is not a workspace of the owner, QuotaExceeded.
        """
        require(p, Action.CREATE_KEY)
        name = parse_key_name(name)
        if ttl is not None and ttl <= timedelta(0):
            raise BadRequest("the ttl of a key must be positive; for example --ttl 30d")
        async with self._adding:
            self._tier_of(p.owner).check_keys(len(await self._store.keys(p.owner)))
            if scope is not None:
                scope = parse_workspace(scope)
                await self._registry.check_exists(p, scope)
            now = self._clock.now()
            secret = Secret(KEY_PREFIX + random_hex(20))
            expires = None if ttl is None else now + ttl
            key = ApiKey(random_hex(16), p.owner, name, scope, now, expires, None)
            await self._store.add_key(key, digest(secret.reveal()))
        return key, secret

    async def list_keys(self, p: Principal) -> list[ApiKey]:
        """Return the API keys of the owner, oldest first."""
        require(p, Action.LIST_KEYS)
        return await self._store.keys(p.owner)

    async def remove_key(self, p: Principal, name: str) -> None:
        """Revoke an API key, and end its attachments and connections.

        Raises NotFound, or Unavailable if the database does not answer. The attachments have ended
        even then.
        """
        require(p, Action.REMOVE_KEY)
        await self.revoke(p.owner, name)

    async def revoke(self, owner: str, name: str) -> None:
        """Revoke the API keys of that name of an owner, as `remove_key`, without authorization."""
        keys = [key for key in await self._store.keys(owner) if key.name == name]
        if not keys:
            raise NotFound(f"no API key {shown(name)}; see: apikeys ls")
        for key in keys:
            try:
                await self._store.remove_key(key.id)
            finally:
                self._attachments.end_key(key.id, f"API key {key.name} was revoked")

    async def principal_of_key(self, presented: str | None) -> Principal:
        """Return the principal of a presented API key.

        Raises the same InvalidKey for every failure; Forbidden for a valid key of a blocked owner.
        """
        if presented is None or len(presented) > MAX_PRESENTED:
            presented = ""  # The lookup takes the same time as for an unknown key.
        key = await self._store.find_key(digest(presented), self._clock.now())
        if key is None:
            raise InvalidKey
        p = Principal(key.owner, key.scope, "api_key", key.id, expires=key.expires)
        self._callers.check_admitted(p)
        self._callers.key_uses.touch(key.id)
        self._callers.seen(p, has_something=True)
        return p
