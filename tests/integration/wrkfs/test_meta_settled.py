"""Which answers are settled: what a lease may rest on. Rules: functions/1_leases.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.volumes.metastore import let_go
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.volumes.metastore import InPostgres
    from wrkfs.types import Ino

ME = Caller(0, 0)
LOCK = "SELECT 1 FROM inode WHERE ino = $1 FOR NO KEY UPDATE"
CHANGE = "UPDATE inode SET mtime = mtime + 1 WHERE ino = $1"


@pytest.fixture
async def meta(pg_volume: InPostgres) -> AsyncIterator[PostgresMeta]:
    """A session that asks."""
    store = PostgresMeta(pg_volume.config, leases=True)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def answers(meta: PostgresMeta, folder: Ino, file: Ino) -> dict[str, bool]:
    """Whether answers are settled that tell of a directory, a file in it, and no file."""
    return {
        "folder": (await meta.stat(folder))[1],
        "file": (await meta.stat(file))[1],
        "name": (await meta.find(folder, b"f"))[1],
        "no name": (await meta.find(folder, b"x"))[1],
        "listing": (await meta.entries(folder, 0, 10))[1],
    }


@pytest.mark.promise("V1")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("how", [LOCK, CHANGE])
async def test_only_a_change_under_way_keeps_answers_from_being_settled(
    pg_volume: InPostgres, meta: PostgresMeta, how: str, end: str
) -> None:
    folder = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    file = (await meta.create(folder, b"f", 0o644, ME, exclusive=True))[0].attr.ino
    # Leaves a lock that has ended on the row.
    await let_go(meta, file)
    settled = dict.fromkeys(await answers(meta, folder, file), True)
    assert await answers(meta, folder, file) == settled
    admin = await pg_volume.admin()
    try:
        for ino, doubtful in (
            (file, {"file", "name", "listing"}),
            (folder, {"folder", "file", "name", "no name", "listing"}),
        ):
            await admin.execute("BEGIN")
            await admin.execute(how, ino)
            # Beside another transaction that began later and has ended.
            await meta.mkdir(ROOT_INO, b"beside %d" % ino, 0o755, ME)
            found = await answers(meta, folder, file)
            assert {what for what, sure in found.items() if not sure} == doubtful
            await admin.execute(end)
            assert await answers(meta, folder, file) == settled
    finally:
        await admin.close()


async def test_a_number_of_a_transaction_is_found_next_to_the_snapshot(
    pg_volume: InPostgres,
) -> None:
    """Numbers have 32 bits in a row and begin again; old ones are of ended transactions."""
    admin = await pg_volume.admin()
    try:
        present = await admin.fetchval("SELECT pg_current_xact_id()::text::bigint")
        for xid, ended in ((3, True), (present, True), (present + 1000, False)):
            query = "SELECT wrkfs.has_ended($1::text::xid)"
            assert await admin.fetchval(query, str(xid % (1 << 32))) is ended
    finally:
        await admin.close()
