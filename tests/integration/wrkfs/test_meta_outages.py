"""Lost connections and outages between the metadata store and PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.doubles.block_store import MemoryBlocks
from tests.harness.servers.wire import Wire
from tests.harness.volumes.extents import Objects
from tests.harness.wait import until
from wrkfs import errors
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.links import Links
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, Commit, RenameFlags, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.servers.wire import Moment
    from tests.harness.volumes.metastore import InPostgres

ME = Caller(0, 0)
MARK = b"needle-in-the-wire"


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
    """A session behind the proxy."""
    store = PostgresMeta(replace(pg_volume.config, meta_dsn=wire.dsn))
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("moment", ["sent", "answered"])
async def test_a_cut_call_is_applied_once(meta: PostgresMeta, wire: Wire, moment: Moment) -> None:
    other = b"other"
    folder = (await meta.mkdir(ROOT_INO, b"d", 0o755, ME)).ino
    hidden = (await meta.create_unlinked(0o600, ME)).attr.ino

    def cut() -> None:
        wire.cut(MARK, 2, moment)

    cut()
    made, new = await meta.create(ROOT_INO, MARK, 0o600, ME, exclusive=True)
    assert new
    file = made.attr.ino
    cut()
    await meta.rename(ROOT_INO, MARK, folder, other)
    cut()
    assert (await meta.link(file, ROOT_INO, MARK)).nlink == 2
    cut()
    await meta.rename(ROOT_INO, MARK, folder, other, RenameFlags.NONE)
    cut()
    await meta.setxattr(file, MARK, b"")
    cut()
    await meta.removexattr(file, MARK)
    cut()
    await meta.unlink(ROOT_INO, MARK)
    cut()
    await meta.mkdir(ROOT_INO, MARK, 0o700, ME)
    cut()
    await meta.rmdir(ROOT_INO, MARK)
    cut()
    await meta.symlink(ROOT_INO, MARK, b"t", ME)
    cut()
    await meta.remove_tree(ROOT_INO, MARK)
    cut()
    assert await meta.publish(hidden, ROOT_INO, MARK)
    cut()
    await meta.rename(ROOT_INO, MARK, folder, other, RenameFlags.EXCHANGE)
    assert (await meta.lookup(ROOT_INO, MARK)).ino == file
    assert wire.cuts == 26
    use = await meta.statfs()
    assert (use.inodes_used, use.bytes_used) == (3, 0)


@pytest.mark.parametrize("moment", ["sent", "answered"])
async def test_a_cut_append_is_applied_once(meta: PostgresMeta, wire: Wire, moment: Moment) -> None:
    objects = Objects()
    file = (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    for n in range(5):
        wire.cut(MARK, 2, moment)
        extent = objects.inline(0, MARK + b"%d" % n)
        attr = await meta.commit(Commit(file, (extent,), append=True))
        assert attr.size == (n + 1) * (len(MARK) + 1)
    assert objects.read(await meta.file_map(file)) == b"".join(MARK + b"%d" % n for n in range(5))
    assert (await meta.statfs()).bytes_used == 5 * (len(MARK) + 1)
    assert wire.cuts == 10


async def test_an_outage_costs_only_time(meta: PostgresMeta, wire: Wire) -> None:
    objects = Objects()
    file = (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    await wire.down()
    calls = [
        asyncio.create_task(meta.commit(Commit(file, (objects.inline(0, b"x"),), append=True)))
        for _ in range(20)
    ]
    calls.append(asyncio.create_task(meta.setattr(file, SetAttr(mode=0o640))))
    done, _ = await asyncio.wait(calls, timeout=0.5)
    assert not done
    await wire.up()
    await asyncio.gather(*calls)
    assert (await meta.getattr(file)).size == 20


async def test_restarts_of_the_server_cost_only_time(
    pg_volume: InPostgres, meta: PostgresMeta
) -> None:
    file = (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    objects = Objects()
    for n in range(5):
        await pg_volume.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1",
            pg_volume.schema,
        )
        attr = await meta.commit(Commit(file, (objects.inline(0, b"x"),), append=True))
        assert attr.size == n + 1


async def test_calls_give_up_at_their_deadline(pg_volume: InPostgres, tmp_path: Path) -> None:
    nothing = Wire(pg_volume.config.meta_dsn, tmp_path)
    links = Links(replace(pg_volume.config, meta_dsn=nothing.dsn), 1)
    with pytest.raises(errors.Unavailable):
        await links.call("getattr", (1,), deadline=0.2)
    await links.close()
    with pytest.raises(errors.Unavailable):
        await links.call("getattr", (1,), deadline=0.2)


async def test_a_role_without_connections_is_named(pg_volume: InPostgres) -> None:
    role = pg_volume.schema
    links = Links(pg_volume.config, 1)
    await pg_volume.rows(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    with pytest.raises(errors.Unavailable, match=r"role.*53300.*CONNECTION LIMIT") as refused:
        await links.call("getattr", (1,), deadline=0.5)
    await pg_volume.rows(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    assert role not in str(refused.value)
    await links.close()


async def test_a_server_without_connections_is_named(pg_volume: InPostgres) -> None:
    """A database with no connection left has the code of a server with none."""
    [(database, limit)] = await pg_volume.rows(
        "SELECT datname, datconnlimit FROM pg_database WHERE datname = current_database()"
    )
    links = Links(pg_volume.config, 1)
    await pg_volume.rows(f'ALTER DATABASE "{database}" CONNECTION LIMIT 0')
    try:
        with pytest.raises(errors.Unavailable, match=r"53300.*max_connections"):
            await links.call("getattr", (1,), deadline=0.5)
    finally:
        await pg_volume.rows(f'ALTER DATABASE "{database}" CONNECTION LIMIT {limit}')
        await links.close()


async def test_closing_in_an_outage_ends(pg_volume: InPostgres, wire: Wire) -> None:
    store = PostgresMeta(replace(pg_volume.config, meta_dsn=wire.dsn))
    await store.start()
    await wire.down()
    await asyncio.wait_for(store.close(deadline=0.2), 20)
    helper = await pg_volume.session()
    assert await helper.fence(store.session, force=True)


async def test_a_cancelled_call_leaves_the_store_usable(meta: PostgresMeta, wire: Wire) -> None:
    await wire.down()
    calls = [asyncio.create_task(meta.mkdir(ROOT_INO, b"x%d" % n, 0o700, ME)) for n in range(40)]
    await asyncio.wait(calls, timeout=0.1)
    for call in calls:
        call.cancel()
    assert all(
        isinstance(outcome, asyncio.CancelledError)
        for outcome in await asyncio.gather(*calls, return_exceptions=True)
    )
    await wire.up()
    await meta.mkdir(ROOT_INO, b"d", 0o700, ME)
    await meta.lookup(ROOT_INO, b"d")


FOREVER = 1 << 30


async def fence_after_a_lost_answer(volume: InPostgres, wire: Wire, meta: PostgresMeta) -> None:
    """Fences a session whose call with MARK has been applied and has lost its answer."""
    helper = await volume.session()
    await until(lambda: wire.cuts > 1)
    assert await helper.fence(meta.session, force=True)
    wire.cut(MARK, 0, "answered")


async def test_a_call_in_doubt_when_its_session_is_fenced_is_not_made_again(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    fs = Filesystem(meta, MemoryBlocks())
    wire.cut(MARK, FOREVER, "answered")
    making = asyncio.create_task(fs.mkdir(ROOT_INO, MARK, 0o755, ME))
    await fence_after_a_lost_answer(pg_volume, wire, meta)
    with pytest.raises(errors.Doubtful):
        await making
    await fs.lookup(ROOT_INO, MARK)
    await fs.mkdir(ROOT_INO, b"next", 0o755, ME)
    assert meta.epoch == 2


async def test_bytes_in_doubt_when_their_session_is_fenced_are_not_written_again(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    fs = Filesystem(meta, MemoryBlocks())
    attr, handle = await fs.create(ROOT_INO, b"log", 0o600, os.O_WRONLY | os.O_APPEND, ME)
    wire.cut(MARK, FOREVER, "answered")
    await handle.write(0, MARK)
    closing = asyncio.create_task(handle.close())
    await fence_after_a_lost_answer(pg_volume, wire, meta)
    with pytest.raises(errors.Doubtful):
        await closing
    again = await fs.open(attr.ino, os.O_WRONLY | os.O_APPEND)
    await again.write(0, b"!")
    await again.close()
    assert (await fs.getattr(attr.ino)).size == len(MARK) + 1


async def test_a_fence_while_a_tree_is_removed_is_no_failure(
    pg_volume: InPostgres, meta: PostgresMeta, wire: Wire
) -> None:
    fs = Filesystem(meta, MemoryBlocks())
    top = (await fs.mkdir(ROOT_INO, b"tree", 0o755, ME)).ino
    await pg_volume.rows(
        "WITH new AS (SELECT 10000000 + n AS ino FROM generate_series(1, 3000) n),"
        " inodes AS (INSERT INTO inode SELECT ino, 32768, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0 FROM new)"
        ", used AS (UPDATE usage SET inodes = inodes + 3000)"
        " INSERT INTO dentry SELECT $1, ino::text::bytea, ino, ino FROM new",
        top,
    )
    helper = await pg_volume.session()
    blocker = await pg_volume.admin()
    try:
        transaction = blocker.transaction()
        await transaction.start()
        # The first step removes the name, the second one waits here.
        await blocker.execute("SELECT 1 FROM inode WHERE ino > 10000000 FOR UPDATE")
        removing = asyncio.create_task(fs.remove_tree(ROOT_INO, b"tree"))
        async with asyncio.timeout(20):
            while await helper.readdir(ROOT_INO, 0, 10):  # noqa: ASYNC110 rows have no event
                await asyncio.sleep(0.01)
        await wire.down()
        await transaction.rollback()
        assert await helper.fence(meta.session, force=True)
        await wire.up()
        await removing
    finally:
        await blocker.close()
    assert (await helper.statfs()).inodes_used == 0
