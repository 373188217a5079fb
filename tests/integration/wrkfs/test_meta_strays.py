"""What the database says is held and nobody holds: opens and releases whose end is unknown."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.logs import provoked
from tests.harness.servers.wire import Wire
from tests.harness.volumes.metastore import let_go
from tests.harness.wait import DEADLINE
from wrkfs import errors
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.types import Ino

ME = Caller(0, 0)
IMPATIENT = 3.0
"""Seconds after which a call of these tests gives up."""


@pytest_asyncio.fixture
async def wire(pg_volume: InPostgres, tmp_path: Path) -> AsyncIterator[Wire]:
    """A proxy before the volume's database."""
    proxy = Wire(pg_volume.config.meta_dsn, tmp_path)
    await proxy.up()
    try:
        yield proxy
    finally:
        await proxy.down()


@pytest_asyncio.fixture
async def meta(pg_volume: InPostgres, wire: Wire) -> AsyncIterator[PostgresMeta]:
    """An impatient session behind the proxy."""
    config = replace(pg_volume.config, meta_dsn=wire.dsn)
    store = PostgresMeta(config, deadline=IMPATIENT)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def held(pg_volume: InPostgres) -> set[Ino]:
    """What sessions hold, by the database."""
    return {row["ino"] for row in await pg_volume.rows("SELECT ino FROM sustained")}


async def eventually(pg_volume: InPostgres, inos: set[Ino]) -> None:
    """Waits until these are held."""
    async with asyncio.timeout(DEADLINE):
        found = await held(pg_volume)
        while found != inos:
            await asyncio.sleep(0.01)
            found = await held(pg_volume)


async def unlinked(meta: PostgresMeta) -> Ino:
    """An open file that has no name."""
    return (await meta.create_unlinked(0o600, ME)).attr.ino


@asynccontextmanager
async def away(wire: Wire) -> AsyncIterator[None]:
    """An outage; a heartbeat may fail in it, until the end."""
    with provoked("wrkfs.meta.postgres.sessions"):
        await wire.down()
        yield
        await wire.up()


async def release_in_vain(meta: PostgresMeta, wire: Wire, ino: Ino) -> None:
    """A release during an outage, and what waits for it."""
    async with away(wire):
        with pytest.raises(errors.Unavailable):
            await let_go(meta, ino)


async def test_a_release_that_failed_is_made_up_for(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    kept, left = await unlinked(meta), await unlinked(meta)
    await release_in_vain(meta, wire, left)
    await meta.tidy()
    assert await held(pg_volume) == {kept}
    assert (await meta.statfs()).inodes_used == 1
    # Found again and again: a sending that is under way may still come.
    await let_go(meta, kept)
    await meta.tidy()
    assert await held(pg_volume) == set()


async def test_an_open_that_was_applied_without_an_answer_is_undone(
    pg_volume: InPostgres, meta: PostgresMeta
) -> None:
    ino = (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    await let_go(meta, ino)
    admin = await pg_volume.admin()
    try:
        lock = admin.transaction()
        await lock.start()
        await admin.execute("SELECT 1 FROM inode WHERE ino = $1 FOR UPDATE", ino)
        with pytest.raises(errors.Unavailable):
            await meta.open(ino)
        await lock.rollback()
    finally:
        await admin.close()
    await eventually(pg_volume, {ino})
    await meta.tidy()
    assert await held(pg_volume) == set()


async def named(meta: PostgresMeta, *names: bytes) -> list[Ino]:
    """Files that nobody has open."""
    found = []
    for name in names:
        made, _ = await meta.create(ROOT_INO, name, 0o600, ME, exclusive=True)
        await let_go(meta, made.attr.ino)
        found.append(made.attr.ino)
    return found


async def nothing() -> None:
    """Nothing is kept."""


async def test_many_files_are_held_with_one_call(pg_volume: InPostgres, meta: PostgresMeta) -> None:
    first, second, gone = await named(meta, b"a", b"b", b"c")
    await meta.unlink(ROOT_INO, b"c")
    await meta.open(second)
    await meta.sustain([first, second, gone, ROOT_INO])
    assert await held(pg_volume) == {first, second}
    await let_go(meta, second)
    assert await held(pg_volume) == {first, second}
    for ino in (second, first, gone, ROOT_INO):
        await let_go(meta, ino)
    assert await held(pg_volume) == set()


async def test_what_was_only_just_removed_is_taken_up(
    pg_volume: InPostgres, meta: PostgresMeta
) -> None:
    (ino,) = await named(meta, b"a")
    await meta.commit(Commit(ino, (Extent(0, SliceId(1), 5, b"", b"12345"),), durable=False))
    await pg_volume.keep_trash()
    await meta.unlink(ROOT_INO, b"a")
    before = await meta.statfs()
    await meta.sustain([ino])
    after = await meta.statfs()
    assert after.bytes_used - before.bytes_used == 5
    assert after.inodes_used - before.inodes_used == 1
    assert (await meta.file_map(ino)).attr.size == 5
    await let_go(meta, ino)
    assert await meta.statfs() == before


async def test_who_holds_nothing_lets_nothing_go(pg_volume: InPostgres, meta: PostgresMeta) -> None:
    (ino,) = await named(meta, b"a")
    await meta.commit(Commit(ino, (Extent(0, SliceId(1), 5, b"", b"12345"),), durable=False))
    await pg_volume.keep_trash()
    await meta.unlink(ROOT_INO, b"a")
    await pg_volume.rows("UPDATE trash SET deleted_at = deleted_at - interval '1 minute'")
    before = await meta.statfs()
    await meta.sustain([ino])
    assert await held(pg_volume) == set()
    await let_go(meta, ino)
    assert await meta.statfs() == before


async def test_a_file_that_cannot_be_opened_again_is_let_go(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    (ino,) = await named(meta, b"a")
    await meta.open(ino)
    await meta.release(ino)
    async with away(wire):
        with pytest.raises(errors.Unavailable):
            await meta.open(ino)
    await meta.statfs()
    await meta.tidy()
    assert await held(pg_volume) == set()


async def test_holds_that_were_made_without_an_answer_are_undone(
    pg_volume: InPostgres, meta: PostgresMeta
) -> None:
    inos = await named(meta, b"a", b"b", b"c")
    admin = await pg_volume.admin()
    try:
        lock = admin.transaction()
        await lock.start()
        await admin.execute("SELECT 1 FROM inode WHERE ino = $1 FOR UPDATE", inos[1])
        with pytest.raises(errors.Unavailable):
            await meta.sustain(inos)
        await lock.rollback()
    finally:
        await admin.close()
    await eventually(pg_volume, set(inos))
    await meta.tidy()
    assert await held(pg_volume) == set()


async def test_what_is_open_by_lease_is_passed_over(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    light, stray = await named(meta, b"a", b"b")
    meta.watch_leases(lambda _: None, lambda: None, nothing, lambda: [light])
    async with away(wire):
        with pytest.raises(errors.Unavailable):
            await meta.sustain([stray])
    # As the first question on a new connection does after a crash of the database.
    row = "INSERT INTO sustained (ino, session_id) VALUES ($1, $2)"
    for ino in (light, stray):
        await pg_volume.rows(row, ino, meta.session)
    await meta.tidy()
    assert await held(pg_volume) == {light}
    await meta.sustain([light])
    await let_go(meta, light)
    assert await held(pg_volume) == set()


async def test_a_call_that_is_under_way_is_left_alone(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    ino = await unlinked(meta)
    await release_in_vain(meta, wire, ino)
    made, _ = await asyncio.gather(
        asyncio.gather(*(unlinked(meta) for _ in range(50))),
        asyncio.gather(*(meta.tidy() for _ in range(10))),
    )
    assert await held(pg_volume) == set(made)


async def test_the_heart_makes_up_for_it(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    ino = await unlinked(meta)
    await release_in_vain(meta, wire, ino)
    await eventually(pg_volume, set())
