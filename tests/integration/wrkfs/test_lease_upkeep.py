"""Upkeep of what other sessions lease: compaction, repairs, access times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.doubles.block_store import MemoryBlocks
from tests.harness.volumes.metastore import Leased
from tests.harness.wait import DEADLINE
from wrkfs.errors import Unavailable
from wrkfs.fs import Filesystem
from wrkfs.layout import INLINE_MAX
from wrkfs.meta.postgres.recall import recall
from wrkfs.types import ROOT_INO, Caller, Commit, Extent
from wrkfs.upkeep import compact, repair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.meta.leases.store import LeasedMeta
    from wrkfs.types import Ino

ME = Caller(0, 0)
PAGE = 4096


@pytest_asyncio.fixture
async def leased(pg: str) -> AsyncIterator[Leased]:
    """An empty volume whose sessions keep what leases allow."""
    volume = Leased(pg)
    await volume.make()
    try:
        yield volume
    finally:
        await volume.drop()


async def session(leased: Leased) -> LeasedMeta:
    """Another one."""
    return (await leased.pair())[1]


async def holders(leased: Leased, ino: Ino) -> set[int]:
    """Sessions with a lease on a directory."""
    rows = await leased.rows("SELECT session_id FROM lease WHERE ino = $1", ino)
    return {row["session_id"] for row in rows}


async def warm(meta: LeasedMeta, directory: Ino, name: bytes) -> Ino:
    """Looks until it has a lease on a directory: others may just have asked for it."""
    async with asyncio.timeout(DEADLINE):
        while True:
            attr = await meta.lookup(directory, name)
            if meta.table.holds(directory) and meta.table.known(attr.ino) is not None:
                return attr.ino
            await asyncio.sleep(0.01)


async def test_a_file_in_a_directory_that_others_lease_is_compacted_with_one_copy(
    leased: Leased,
) -> None:
    blocks = MemoryBlocks()
    store, caching = await leased.pair()
    writer = Filesystem(store, blocks, leased=caching)
    meta = writer.stores.meta
    home = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    ino = (await meta.create(home, b"f", 0o644, ME, exclusive=True))[0].attr.ino
    pages = 2 * INLINE_MAX // PAGE
    for page in (*range(0, pages, 2), *range(1, pages, 2)):
        extent = Extent(page * PAGE, await meta.reserve_slices(1), PAGE, b"", bytes([page]) * PAGE)
        await meta.commit(Commit(ino, (extent,), durable=False))
    reader = await session(leased)
    assert await warm(reader, home, b"f") == ino
    assert int(reader.session) in await holders(leased, home)
    assert await compact.compact_file(writer, ino, refs=pages) == 1
    assert blocks.puts == 1
    assert int(reader.session) not in await holders(leased, home)
    assert len((await reader.file_map(ino)).refs) == 1
    await meta.release(ino)


MANY = 260
"""Directories: more than one message names."""


async def test_a_repair_gets_everything_back_that_is_kept(leased: Leased) -> None:
    meta = await session(leased)
    for number in range(MANY):
        await meta.mkdir(ROOT_INO, b"d%d" % number, 0o755, ME)
    await meta.readdir(ROOT_INO, 0, 10)
    before = await leased.rows("SELECT l.ino, l.session_id FROM lease l WHERE l.ino > 0")
    assert len(before) >= MANY
    assert await repair.repair(leased.config) == {}
    assert await leased.rows("SELECT l.ino FROM lease l WHERE l.ino > 0") == []
    assert not any(meta.table.holds(row["ino"]) for row in before)


async def test_a_repair_tells_who_gives_nothing_back(leased: Leased) -> None:
    meta = await session(leased)
    home = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    ended = asyncio.Event()

    async def never(_directories: object, _inos: object) -> None:
        await ended.wait()

    meta.table.on_drop = never
    admin = await leased.admin()
    try:
        with pytest.raises(Unavailable, match=f"sessions {meta.session} do not give back"):
            await recall(admin, patience=0.5)
        assert int(meta.session) in await holders(leased, home)
        ended.set()
        await recall(admin)
        assert await holders(leased, home) == set()
    finally:
        await admin.close()


async def test_leases_that_are_younger_than_the_repair_stay(leased: Leased) -> None:
    meta = await session(leased)
    home = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    later = "UPDATE lease SET taken_at = clock_timestamp() + interval '1 h' WHERE ino = $1"
    await leased.rows(later, home)
    admin = await leased.admin()
    try:
        await recall(admin)
    finally:
        await admin.close()
    assert await holders(leased, home) == {int(meta.session)}


async def test_an_access_time_reaches_others_and_leaves_them_their_leases(leased: Leased) -> None:
    meta, other = await session(leased), await session(leased)
    home = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    names = [b"f%d" % number for number in range(700)]  # more than one message names
    inos = []
    for name in names:
        found, _ = await meta.create(home, name, 0o644, ME, exclusive=True)
        inos.append(found.attr.ino)
        await meta.release(found.attr.ino)
    await warm(other, home, names[0])
    seen = {entry.attr.ino: entry.attr for entry in await other.readdir(home, 0, 1000)}
    assert await other.getattr(home) == other.table.known(home)
    dropped: set[Ino] = set()

    async def drop(_directories: object, gone: set[Ino]) -> None:
        dropped.update(gone)

    other.table.on_drop = drop
    query = "SELECT ino, session_id, taken_at FROM lease WHERE ino > 0 AND session_id = $1"
    before = await leased.rows(query, other.session)
    times = {ino: attr.atime_ns + 1000 for ino, attr in seen.items()}
    times[home] = (await other.getattr(home)).atime_ns + 1000
    assert set(times) == {*inos, home}
    await meta.touch(times)
    async with asyncio.timeout(DEADLINE):
        for ino, wanted in times.items():
            while (await other.getattr(ino)).atime_ns != wanted:  # noqa: ASYNC110 no event
                await asyncio.sleep(0.01)
    assert {entry.attr.atime_ns for entry in await other.readdir(home, 0, 1000)} == {
        times[ino] for ino in inos
    }
    assert set(times) <= dropped
    assert other.table.holds(home)
    assert await leased.rows(query, other.session) == before
