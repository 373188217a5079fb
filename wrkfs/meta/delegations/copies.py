"""Clones and snapshots of a session that sends its changes later: it sends them first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.meta.delegations.flusher import Flusher
    from wrkfs.meta.interface.copies import CopyStore
    from wrkfs.types import Attr, Ino, Snapshot


class OrderedCopies:
    """Copies of trees. Implements `CopyStore`; the protocol documents each method."""

    def __init__(self, inner: CopyStore, flusher: Flusher) -> None:
        self._inner = inner
        self._flusher = flusher
        self.snapshots = inner.snapshots

    async def clone(self, source: Ino, parent: Ino, name: bytes, *, replace: bool = False) -> Attr:
        await self._flusher.flush()
        return await self._inner.clone(source, parent, name, replace=replace)

    async def create_snapshot(self, source: Ino, name: bytes, path: bytes) -> Snapshot:
        await self._flusher.flush()
        return await self._inner.create_snapshot(source, name, path)

    async def remove_snapshot(self, name: bytes) -> None:
        await self._flusher.flush()
        await self._inner.remove_snapshot(name)
