"""Clones and snapshots in a session with leases: what they change, the cache drops."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from wrkfs.meta.rules import SNAPSHOTS_INO, SNAPSHOTS_NAME
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.leases.lease_table import LeaseTable
    from wrkfs.meta.leases.lifecycle import LeaseLifecycle
    from wrkfs.types import Attr, Ino, Snapshot


class LeasedCopies:
    """Copies of trees. Implements `CopyStore`; the protocol documents each method."""

    def __init__(self, inner: LeaseStore, table: LeaseTable, leases: LeaseLifecycle) -> None:
        self._inner = inner
        self._table = table
        self._leases = leases
        self.snapshots = inner.copies.snapshots

    async def clone(self, source: Ino, parent: Ino, name: bytes, *, replace: bool = False) -> Attr:
        if replace:
            changing = self._leases.changing((parent, name), parent, is_open_ended=True)
            async with self._removing(), changing:
                return await self._inner.copies.clone(source, parent, name, replace=True)
        async with self._leases.changing((parent, name), parent):
            attr = await self._inner.copies.clone(source, parent, name)
            self._forget(parent, name)
        return attr

    async def create_snapshot(self, source: Ino, name: bytes, path: bytes) -> Snapshot:
        keys = (SNAPSHOTS_INO, name), SNAPSHOTS_INO, (ROOT_INO, SNAPSHOTS_NAME), ROOT_INO
        async with self._leases.changing(*keys):
            snapshot = await self._inner.copies.create_snapshot(source, name, path)
            self._forget(SNAPSHOTS_INO, name)
            root = self._table.directories.get(ROOT_INO)
            if root is not None:
                root.stamp(None)  # the first snapshot creates `.snapshots`
        return snapshot

    async def remove_snapshot(self, name: bytes) -> None:
        keys = (SNAPSHOTS_INO, name), SNAPSHOTS_INO
        async with self._removing(), self._leases.changing(*keys, is_open_ended=True):
            await self._inner.copies.remove_snapshot(name)

    @asynccontextmanager
    async def _removing(self) -> AsyncIterator[None]:
        """Run the removal of a tree in the body: no lease and no unrecorded open relies on it."""
        opens = self._leases.opens
        try:
            with opens.barred():
                await opens.sustain(opens.all)
                yield
        finally:
            self._leases.give_back_all()
        await self._leases.wait_dropped()

    def _forget(self, parent: Ino, name: bytes) -> None:
        cached = self._table.directories.get(parent)
        if cached is not None:
            cached.forget(name)
            cached.stamp(None)
