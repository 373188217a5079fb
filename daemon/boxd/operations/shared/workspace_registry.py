"""The workspaces that an owner has, and their creation at first use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from boxd.authz import Action, require
from boxd.errors import NotFound
from boxd.names.nearest import did_you_mean
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from boxd.boxes.limits.tier_limits import Tier
    from boxd.clock import Clock
    from boxd.principal import Principal
    from boxd.store.interface import ControlStore


class WorkspaceRegistry:
    """Checks for workspaces, and creates those that no box creates.

    Critical section: `_creating` is held between counting an owner's workspaces and adding one.
    """

    def __init__(self, store: ControlStore, tier_of: Callable[[str], Tier], clock: Clock) -> None:
        self._store = store
        self._tier_of = tier_of
        self._clock = clock
        self._creating = asyncio.Lock()

    async def check_enters(self, p: Principal, name: str) -> None:
        """Raise Forbidden if a workspace does not exist and the principal cannot create it."""
        if name not in await self._store.workspaces(p.owner):
            require(p, Action.CREATE_WORKSPACE)

    async def check_exists(self, p: Principal, name: str | None) -> None:
        """Raise NotFound, with the nearest name, for a named workspace that does not exist."""
        present = await self._store.workspaces(p.owner)
        if name is None or name in present:
            return
        visible = [one for one in present if p.scope in (None, one)]
        nearest = did_you_mean(name, visible)
        raise NotFound(f"no workspace {shown(name)}{nearest}; see: ws ls")

    async def ensure(self, p: Principal, name: str) -> None:
        """Create a workspace if it does not exist. Raises Forbidden, QuotaExceeded."""
        async with self._creating:
            present = await self._store.workspaces(p.owner)
            if name in present:
                return
            require(p, Action.CREATE_WORKSPACE)
            self._tier_of(p.owner).check_workspaces(len(present))
            await self._store.add_workspace(p.owner, name, self._clock.now())
