"""Shares of ControlStore in memory; see `memory`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.errors import NotFound

if TYPE_CHECKING:
    from datetime import datetime

    from boxd.model.access.share import Share
    from boxd.model.box import Box


class MemoryShares(ABC):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[str, tuple[Share, bytes]] = {}

    @abstractmethod
    async def box(self, box_id: str) -> Box | None:
        """See ControlStore."""

    async def add_share(self, share: Share, sha256: bytes) -> None:
        """See ControlStore."""
        if await self.box(share.box_id) is None:
            raise NotFound("no such box")
        self._shares.setdefault(share.id, (share, sha256))

    async def shares(self, owner: str) -> list[Share]:
        """See ControlStore."""
        mine = [share for share, _ in self._shares.values() if share.owner == owner]
        return sorted(mine, key=lambda share: (share.created, share.id))

    async def find_share(self, sha256: bytes) -> Share | None:
        """See ControlStore."""
        by_digest = {stored: share for share, stored in self._shares.values()}
        return by_digest.get(sha256)

    async def remove_share(self, share_id: str) -> None:
        """See ControlStore."""
        self._shares.pop(share_id, None)

    async def touch_share(self, share_id: str, when: datetime) -> None:
        """See ControlStore."""
        if share_id in self._shares:
            share, sha256 = self._shares[share_id]
            latest = when if share.last_used is None else max(when, share.last_used)
            self._shares[share_id] = (replace(share, last_used=latest), sha256)

    def _forget_shares_of(self, box_id: str) -> None:
        self._shares = {
            share_id: one for share_id, one in self._shares.items() if one[0].box_id != box_id
        }
