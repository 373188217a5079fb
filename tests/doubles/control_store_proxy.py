"""Browsers' sessions of ControlStore in memory; see `memory`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from boxd.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from boxd.model.access.proxy import ProxySession
    from boxd.model.box import Box


class MemoryProxy(ABC):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._proxy_sessions: dict[str, tuple[ProxySession, bytes]] = {}

    @abstractmethod
    async def box(self, box_id: str) -> Box | None:
        """See ControlStore."""

    @abstractmethod
    def _key_owner(self, key_id: str) -> str | None:
        """Whose key that is; None: there is none."""

    async def add_proxy_session(self, session: ProxySession, sha256: bytes) -> None:
        """See ControlStore."""
        if await self.box(session.box_id) is None or self._key_owner(session.key_id) is None:
            raise NotFound("no such box")
        self._proxy_sessions.setdefault(session.id, (session, sha256))

    async def find_proxy_session(self, sha256: bytes) -> ProxySession | None:
        """See ControlStore."""
        by_digest = {stored: session for session, stored in self._proxy_sessions.values()}
        found = by_digest.get(sha256)
        if found is None:
            return None
        box = await self.box(found.box_id)
        owners = {self._key_owner(found.key_id), None if box is None else box.owner}
        return found if owners == {found.owner} else None

    async def trim_proxy_sessions(self, owner: str, now: datetime, keep: int) -> None:
        """See ControlStore."""
        mine = [one for one, _ in self._proxy_sessions.values() if one.owner == owner]
        living = [one for one in mine if one.expires > now]
        living.sort(key=lambda one: one.id)
        living.sort(key=lambda one: one.created, reverse=True)
        kept = {one.id for one in living[:keep]}
        self._forget_proxy_sessions(lambda one: one.owner == owner and one.id not in kept)

    def _forget_proxy_sessions(self, gone: Callable[[ProxySession], bool]) -> None:
        self._proxy_sessions = {
            number: one for number, one in self._proxy_sessions.items() if not gone(one[0])
        }
