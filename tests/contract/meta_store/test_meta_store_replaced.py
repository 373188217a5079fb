"""A file whose name was replaced between the look-up and the open can still be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.metastore import let_go
from wrkfs.errors import NotFound
from wrkfs.types import ROOT_INO, Caller, Commit, Extent

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import MetaVolume
    from wrkfs.meta.interface.store import MetaStore
    from wrkfs.types import Ino

ROOT = Caller(0, 0)
SIZE = 5


async def make(meta: MetaStore, name: bytes) -> Ino:
    """A file of five bytes, closed."""
    found, _ = await meta.create(ROOT_INO, name, 0o644, ROOT, exclusive=True)
    ino = found.attr.ino
    extent = Extent(0, await meta.reserve_slices(1), SIZE, b"", b"12345")
    await meta.commit(Commit(ino, (extent,)))
    await let_go(meta, ino)
    return ino


async def use(meta: MetaStore) -> tuple[int, int]:
    """Bytes and inodes that count."""
    found = await meta.statfs()
    return found.bytes_used, found.inodes_used


async def test_it_can_be_opened_and_counts_as_use_while_it_is_open(
    meta: MetaStore, other: MetaStore, meta_volume: MetaVolume
) -> None:
    await meta_volume.keep_trash(1000)
    ino = await make(meta, b"old")
    await make(meta, b"new")
    await other.rename(ROOT_INO, b"new", ROOT_INO, b"old")
    assert await use(meta) == (SIZE, 1)
    for session in (meta, other):
        assert (await session.getattr(ino)).nlink == 0
        opened = await session.open(ino)
        assert (opened.attr.size, len(opened.refs)) == (SIZE, 1)
    assert await use(meta) == (2 * SIZE, 2)
    await let_go(meta, ino)
    assert await use(meta) == (2 * SIZE, 2)
    await let_go(other, ino)
    assert await use(meta) == (SIZE, 1)


async def test_it_can_be_cut_when_it_is_opened(meta: MetaStore, meta_volume: MetaVolume) -> None:
    await meta_volume.keep_trash(1000)
    ino = await make(meta, b"old")
    await meta.unlink(ROOT_INO, b"old")
    assert (await meta.open(ino, truncate=True)).attr.size == 0
    assert await use(meta) == (0, 1)
    await let_go(meta, ino)
    assert await use(meta) == (0, 0)


async def test_without_trash_it_is_gone_at_once(meta: MetaStore) -> None:
    ino = await make(meta, b"old")
    await meta.unlink(ROOT_INO, b"old")
    for call in (meta.getattr, meta.open):
        with pytest.raises(NotFound):
            await call(ino)
