"""Clones and snapshots while other sessions change the volume, and rows that break the rules."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from wrkfs import errors
from wrkfs.meta.rules import SNAPSHOTS_INO, TREE_MAX
from wrkfs.types import ROOT_INO, Caller, Commit, Ino
from wrkfs.upkeep import repair

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.store import PostgresMeta

pytestmark = pytest.mark.promise("V6")
ME = Caller(0, 0)


@pytest.fixture
def objects() -> Objects:
    """Where the slices of this test are."""
    return Objects()


async def file(meta: PostgresMeta, objects: Objects, name: bytes, data: bytes) -> Ino:
    """A closed file with its bytes in the database."""
    ino = (await meta.create(ROOT_INO, name, 0o600, ME, exclusive=True))[0].attr.ino
    await meta.commit(Commit(ino, (objects.inline(0, data),), durable=False))
    await meta.release(ino)
    return ino


async def test_the_last_two_files_of_a_slice_may_go_at_once(
    pg_volume: InPostgres, objects: Objects
) -> None:
    one, two = await pg_volume.session(), await pg_volume.session()
    for _ in range(20):
        ino = await file(one, objects, b"a", b"bytes")
        await one.copies.clone(ino, ROOT_INO, b"b")
        await one.statfs()
        await asyncio.gather(one.unlink(ROOT_INO, b"a"), two.unlink(ROOT_INO, b"b"))
        assert await pg_volume.rows("SELECT 1 FROM inline") == []
        assert await pg_volume.rows("SELECT 1 FROM shared_slice") == []
    assert (await one.statfs()).bytes_used == 0
    assert await pg_volume.broken_invariants() == []


async def test_a_copy_shows_one_moment(pg_volume: InPostgres, objects: Objects) -> None:
    writer, copier = await pg_volume.session(), await pg_volume.session()
    first = await file(writer, objects, b"first", b"0000")
    second = await file(writer, objects, b"second", b"0000")

    async def write() -> None:
        for number in range(10_000):
            for ino in (first, second):
                extent = objects.inline(0, b"%04d" % number)
                await writer.commit(Commit(ino, (extent,), durable=False))

    task = asyncio.create_task(write())
    try:
        for number in range(15):
            snapshot = await copier.copies.create_snapshot(ROOT_INO, b"s%d" % number, b"")
            values = []
            for name in (b"first", b"second"):
                attr = await copier.lookup(snapshot.ino, name)
                values.append(int(objects.read(await copier.file_map(attr.ino))))
            assert values[0] - values[1] in (0, 1)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    for number in range(15):
        await copier.copies.remove_snapshot(b"s%d" % number)
    assert (await copier.statfs()).bytes_used == 8
    assert await pg_volume.broken_invariants() == []


async def test_copies_and_removals_at_once_leave_the_use_exact(
    pg_volume: InPostgres, objects: Objects
) -> None:
    await pg_volume.keep_trash()
    sessions = [await pg_volume.session() for _ in range(3)]
    for number in range(10):
        ino = await file(sessions[0], objects, b"a", b"x" * 50)
        await sessions[0].statfs()
        await asyncio.gather(
            sessions[0].copies.clone(ino, ROOT_INO, b"b"),
            sessions[1].copies.clone(ino, ROOT_INO, b"c"),
            sessions[2].copies.create_snapshot(ino, b"s%d" % number, b"a"),
        )
        await asyncio.gather(
            sessions[0].unlink(ROOT_INO, b"a"),
            sessions[1].remove_tree(ROOT_INO, b"b"),
            sessions[2].copies.remove_snapshot(b"s%d" % number),
            sessions[1].commit(
                Commit(
                    (await sessions[1].lookup(ROOT_INO, b"c")).ino,
                    (objects.inline(0, b"y" * 10),),
                    durable=False,
                )
            ),
        )
        assert await pg_volume.broken_invariants() == []
        await sessions[0].remove_tree(ROOT_INO, b"c")
        assert await pg_volume.broken_invariants() == []


async def test_a_tree_above_the_limit_is_refused(
    pg_volume: InPostgres, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TREE_MAX > 100_000
    meta = await pg_volume.session()
    for name in (b"a", b"b", b"c"):
        await file(meta, objects, name, b"x")
    monkeypatch.setattr("wrkfs.meta.rules.TREE_MAX", 4)
    await meta.copies.create_snapshot(ROOT_INO, b"fits", b"")
    monkeypatch.setattr("wrkfs.meta.rules.TREE_MAX", 3)
    with pytest.raises(errors.ArgumentTooBig):
        await meta.copies.create_snapshot(ROOT_INO, b"refused", b"")
    monkeypatch.setattr("wrkfs.meta.rules.SNAPSHOTS_MAX", 1)
    with pytest.raises(errors.NoSpace):
        await meta.copies.create_snapshot(ROOT_INO, b"refused", b"")
    assert [one.name for one in await meta.copies.snapshots()] == [b"fits"]


async def test_a_cycle_of_directories_is_refused(pg_volume: InPostgres) -> None:
    pg_volume.verify = False
    meta = await pg_volume.session()
    ino = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    await pg_volume.rows("INSERT INTO dentry VALUES ($1, 'again', $1, 1)", ino)
    with pytest.raises(errors.ArgumentTooBig):
        await meta.copies.clone(ino, ROOT_INO, b"copy")
    assert (await meta.statfs()).inodes_used == 1


@pytest.mark.parametrize(
    ("statement", "invariant"),
    [
        ("DELETE FROM snapshot", 17),
        ("UPDATE snapshot SET ino = 1", 17),
        ("UPDATE inode SET borrowed = borrowed - 1 WHERE borrowed > 0", 18),
        ("UPDATE slice SET borrowed = false WHERE inode > 4503599627370496", 18),
        ("INSERT INTO shared_slice VALUES (5, 5)", 18),
        ("UPDATE usage SET shared = 7", 18),
    ],
)
async def test_fsck_finds_and_repairs_rows_of_snapshots(
    pg_volume: InPostgres, objects: Objects, statement: str, invariant: int
) -> None:
    meta = await pg_volume.session()
    await file(meta, objects, b"a", b"bytes")
    await meta.copies.create_snapshot(ROOT_INO, b"s", b"")
    assert await pg_volume.broken_invariants() == []
    await pg_volume.rows(statement)
    found = await pg_volume.broken_invariants()
    assert f"I{invariant}" in {one.split(":")[0] for one in found}
    await repair.repair(pg_volume.config)
    assert await pg_volume.broken_invariants() == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE snapshot SET name = '../../etc'",
        "UPDATE snapshot SET ino = 7",
        "UPDATE snapshot SET bytes = -1",
        "UPDATE snapshot SET path = repeat('x', 5000)::bytea",
    ],
)
async def test_hostile_rows_of_snapshots_are_refused(
    pg_volume: InPostgres, objects: Objects, statement: str
) -> None:
    pg_volume.verify = False
    meta = await pg_volume.session()
    await file(meta, objects, b"a", b"bytes")
    await meta.copies.create_snapshot(ROOT_INO, b"s", b"")
    await pg_volume.rows(statement)
    with pytest.raises(errors.Corrupt):
        await meta.copies.snapshots()


async def test_a_session_that_starts_meanwhile_waits_for_a_copy(
    pg_volume: InPostgres, objects: Objects
) -> None:
    meta = await pg_volume.session()
    ino = await file(meta, objects, b"a", b"bytes")
    conn = await pg_volume.admin()
    transaction = conn.transaction()
    await transaction.start()
    try:
        await conn.execute("SELECT wrkfs.pause_changes()")
        starting = asyncio.create_task(pg_volume.session())
        copying = asyncio.create_task(meta.copies.clone(ino, ROOT_INO, b"b"))
        await asyncio.sleep(0.2)
        assert not starting.done()
        assert not copying.done()
        assert (await meta.lookup(ROOT_INO, b"a")).ino == ino
    finally:
        await transaction.rollback()
        await conn.close()
    assert (await (await starting).lookup(ROOT_INO, b"a")).ino == ino
    assert (await copying).ino < SNAPSHOTS_INO
