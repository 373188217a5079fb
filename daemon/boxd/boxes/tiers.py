"""Which limits an owner has: those of the tier that the operator gave it, else of the default one.

Who has which tier is read at the start and kept in memory, so that asking costs nothing.
Critical section: `assign` writes the row and what is kept under a lock, so that both end the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from boxd.boxes.quota import DEFAULT_TIER
from boxd.errors import BadRequest
from boxd.names.words import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from boxd.boxes.quota import Tier
    from boxd.store.interface import ControlStore

_log = logging.getLogger(__name__)


class Tiers:
    """See the module. `known` has the tier `default`; before `start` everybody has that one."""

    def __init__(self, store: ControlStore, known: Mapping[str, Tier]) -> None:
        self._store = store
        self._known = dict(known)
        self._given: dict[str, str] = {}
        self._lock = asyncio.Lock()

    @property
    def names(self) -> list[str]:
        """The tiers that there are, sorted."""
        return sorted(self._known)

    async def start(self) -> None:
        """Reads who has which. A tier that is not known any more counts as the default one."""
        for account in await self._store.accounts():
            if account.tier is not None:
                self._given[account.owner] = account.tier
        for tier in sorted(set(self._given.values()) - self._known.keys()):
            _log.warning("there is no tier %s any more: its owners have the default one", tier)

    def listed(self) -> list[tuple[str, Tier, int]]:
        """The tiers by name, their limits, and how many owners were given each."""
        given = Counter(map(self.name_of, self._given))
        return [(name, self._known[name], given[name]) for name in self.names]

    def name_of(self, owner: str) -> str:
        """The tier of an owner."""
        name = self._given.get(owner, DEFAULT_TIER)
        return name if name in self._known else DEFAULT_TIER

    def of(self, owner: str) -> Tier:
        """The limits of an owner."""
        return self._known[self.name_of(owner)]

    async def assign(self, owner: str, name: str) -> None:
        """Gives an owner a tier. BadRequest names the known ones; Unavailable.

        What the owner has already stays, also beyond the new limits.
        """
        if name not in self._known:
            raise BadRequest(f"no tier {shown(name)}; known: {', '.join(self.names)}")
        async with self._lock:
            await self._store.set_tier(owner, None if name == DEFAULT_TIER else name)
            self._given[owner] = name
