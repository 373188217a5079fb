"""Calls that reach PostgreSQL after their session has told that they failed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.extents import Objects
from wrkfs import errors
from wrkfs.meta.postgres.statements import STATEMENTS
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, SliceId, Stretch

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.meta.postgres.links import Rows
    from wrkfs.types import Ino

ME = Caller(0, 0)
IMPATIENT = 3.0
"""Seconds after which a call of these tests gives up."""


async def created(meta: PostgresMeta) -> Ino:
    """A file."""
    return (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino


@pytest.mark.promise("D1")
async def test_a_commit_that_is_still_being_made_is_waited_for(pg_volume: InPostgres) -> None:
    meta = PostgresMeta(pg_volume.config, deadline=IMPATIENT)
    await meta.start()
    objects = Objects()
    patient = await pg_volume.session()
    ino = await created(meta)
    lost = objects.stored(0, b"a" * 10)
    admin = await pg_volume.admin()
    try:
        lock = admin.transaction()
        await lock.start()
        await admin.execute("SELECT 1 FROM inode WHERE ino = $1 FOR UPDATE", ino)
        with pytest.raises(errors.Unavailable):
            await meta.commit(Commit(ino, (lost,), durable=False))
        telling = asyncio.create_task(meta.give_up({lost.slice_id: 10}))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not telling.done() and await admin.fetchval(waiting) < 2:  # noqa: ASYNC110 no event
            await asyncio.sleep(0.01)
        await lock.rollback()
        await asyncio.gather(telling, return_exceptions=True)
        if telling.exception() is not None:
            await meta.give_up({lost.slice_id: 10})
    finally:
        await admin.close()
        await meta.close()
    # The commit was applied: nobody knew, but its slice is no garbage.
    assert [ref.slice_id for ref in (await patient.file_map(ino)).refs] == [lost.slice_id]
    assert await pg_volume.freed_slices() == set()


@pytest.mark.promise("D1")
async def test_a_late_copy_of_a_refused_commit_changes_nothing(
    pg_volume: InPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = await pg_volume.session()
    objects = Objects()
    ino = await created(meta)
    sent: list[tuple[object, ...]] = []
    tell = meta._links.tell

    async def heard(
        name: str, args: tuple[object, ...], deadline: float | None = None
    ) -> tuple[Rows, bool]:
        if name == "commit":
            sent.append(args)
        return await tell(name, args, deadline)

    monkeypatch.setattr(meta._links, "tell", heard)
    await pg_volume.limit(5, None)
    lost = objects.stored(0, b"a" * 10)
    with pytest.raises(errors.QuotaExceeded):
        await meta.commit(Commit(ino, (lost,), durable=False))
    await meta.give_up({lost.slice_id: 10})
    # Collected, and room again: only the copy that the network has kept is left.
    await meta.upkeep.forget_slices([lost.slice_id])
    await pg_volume.limit(None, None)
    before = await meta.file_map(ino)
    await pg_volume.rows(STATEMENTS["commit"], *sent[0])
    assert await meta.file_map(ino) == before
    attr = await meta.commit(Commit(ino, (objects.stored(0, b"b"),), durable=False))
    assert attr.size == 1


async def test_other_calls_are_applied_while_ids_are_given_up(pg_volume: InPostgres) -> None:
    meta = await pg_volume.session()
    objects = Objects()
    ino = await created(meta)

    async def append() -> None:
        extent = objects.stored(0, b"x")
        await meta.commit(Commit(ino, (extent,), append=True, durable=False))

    async def fail(number: int) -> None:
        with pytest.raises(errors.NotFound):
            await meta.unlink(ROOT_INO, b"none")
        await meta.give_up({SliceId(10_000 + number): 1})

    for number in range(50):
        await asyncio.gather(*(append() for _ in range(8)), *(fail(number) for _ in range(8)))
        assert (await meta.getattr(ino)).size == 8 * (number + 1)


async def test_a_refused_copy_is_an_answer_that_the_database_remembers(
    pg_volume: InPostgres,
) -> None:
    meta = await pg_volume.session()
    ino = await created(meta)
    extent = Extent(0, await meta.reserve_slices(1), 4, b"", b"aaaa")
    assert not await meta.compact(Stretch(ino, extent, (), ()))
    answered = max(meta._session._answered.values())
    known = await pg_volume.rows("SELECT max(op_seq) FROM op_result")
    assert known[0][0] == answered
