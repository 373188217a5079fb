"""Tiers of owners: the tier that the operator assigned, or the default one.

The assignments are read at startup and stay in memory, so a lookup costs no query. Critical
section: `assign` changes the row and the memory under a lock, so that both agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from boxd.boxes.limits.tier_limits import DEFAULT_TIER
from boxd.errors import BadRequest
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from boxd.boxes.limits.tier_limits import Tier
    from boxd.store.interface import ControlStore

_log = logging.getLogger(__name__)


class Tiers:
    """The tiers and their owners.

    `known` contains the tier `default`, which applies before `start`.
    """

    def __init__(self, store: ControlStore, known: Mapping[str, Tier]) -> None:
        self._store = store
        self._known = dict(known)
        self._assigned: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        """The names of all tiers, sorted."""
        return sorted(self._known)

    async def start(self) -> None:
        """Read the assignments of the store. An unknown tier counts as the default one."""
        for account in await self._store.accounts():
            if account.tier is not None:
                self._assigned[account.owner] = account.tier
        for tier in sorted(set(self._assigned.values()) - self._known.keys()):
            _log.warning("tier %s no longer exists: the default tier applies to its owners", tier)

    def listed(self) -> list[tuple[str, Tier, int]]:
        """Return each tier by name, with its limits and the number of owners assigned to it."""
        counts = Counter(map(self.name_of, self._assigned))
        return [(name, self._known[name], counts[name]) for name in self.names]

    def name_of(self, owner: str) -> str:
        """Return the name of the tier of an owner."""
        name = self._assigned.get(owner, DEFAULT_TIER)
        return name if name in self._known else DEFAULT_TIER

    def of(self, owner: str) -> Tier:
        """Return the limits of an owner."""
        return self._known[self.name_of(owner)]

    async def assign(self, owner: str, name: str) -> None:
        """Assign a tier to an owner. Raises BadRequest, which names the known tiers; Unavailable.

        Existing objects of the owner stay, even beyond the new limits.
        """
        if name not in self._known:
            raise BadRequest(f"no tier {shown(name)}; known: {', '.join(self.names)}")
        async with self._lock:
            await self._store.set_tier(owner, None if name == DEFAULT_TIER else name)
            self._assigned[owner] = name
