"""Clones and snapshots in PostgreSQL: each call is one SQL function of functions/5_clones.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt, NotFound
from wrkfs.layout import PATH_MAX
from wrkfs.meta import rules
from wrkfs.meta.postgres import rows
from wrkfs.types import Ino, Snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg

    from wrkfs.meta.postgres.links import Links
    from wrkfs.meta.postgres.sessions import MountSession
    from wrkfs.types import Attr


class PostgresCopies:
    """Copies of trees. Implements `CopyStore`; the protocol documents each method."""

    def __init__(
        self,
        links: Links,
        session: MountSession,
        release: Callable[[], Awaitable[bool]],
        purge: Callable[[], Awaitable[None]],
    ) -> None:
        """`release` sends the releases that wait, because a closed file frees quota.

        `purge` takes trees apart that this session has removed.
        """
        self._links = links
        self._session = session
        self._release = release
        self._purge = purge

    async def clone(self, source: Ino, parent: Ino, name: bytes, *, replace: bool = False) -> Attr:
        rules.check_name(name)
        await self._release()
        row = await self._session.mutate("clone", source, parent, name, replace, rules.TREE_MAX)
        if row["flag"]:
            await self._purge()
        return rows.attr(row)

    async def create_snapshot(self, source: Ino, name: bytes, path: bytes) -> Snapshot:
        rules.check_snapshot_name(name)
        await self._release()
        limits = rules.TREE_MAX, rules.SNAPSHOTS_MAX
        row = await self._session.mutate("create_snapshot", source, name, path, *limits)
        for snapshot in await self.snapshots():
            if snapshot.ino == row["ino"]:
                return snapshot
        raise NotFound("another session has removed the snapshot")

    async def snapshots(self) -> list[Snapshot]:
        records = await self._links.call("list_snapshots", (2 * rules.SNAPSHOTS_MAX,))
        return [_snapshot(row) for row in records]

    async def remove_snapshot(self, name: bytes) -> None:
        rules.check_snapshot_name(name)
        row = await self._session.mutate("remove_snapshot", name)
        if row["flag"]:
            await self._purge()


def _snapshot(row: asyncpg.Record) -> Snapshot:
    """Convert and validate a row of `snapshot`, which the volume's role can write."""
    name, ino, path, created_at, inodes, size = row
    if not rules.is_snapshot_name(name) or not rules.is_read_only(ino):
        raise Corrupt("name or inode of a snapshot")
    if len(path) > PATH_MAX or b"\0" in path or inodes < 0 or size < 0:
        raise Corrupt("path or size of a snapshot")
    return Snapshot(name, Ino(ino), path, created_at, inodes, size)
