"""PostgreSQL misbehaves: what passes costs time only, what does not is told."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.doubles.block_store import MemoryBlocks
from tests.harness.logs import provoked
from tests.harness.servers.detour import (
    database_proxy,
    socket_of,
    through_addresses,
    through_socket,
)
from tests.harness.servers.fault_proxy import FaultProxy, Toxic
from tests.harness.wait import DEADLINE
from wrkfs.errors import NoSpace, Unavailable
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.links import DEADLINE as LONGEST
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.harness.volumes.metastore import InPostgres

ME = Caller(0, 0)


@pytest.fixture
def proxy(pg_volume: InPostgres, tmp_path: Path) -> Iterator[FaultProxy]:
    """Stands before the volume's database."""
    made = database_proxy(pg_volume.config, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest_asyncio.fixture
async def fs(pg_volume: InPostgres, proxy: FaultProxy) -> AsyncIterator[Filesystem]:
    """A Filesystem behind the proxy."""
    meta = PostgresMeta(through_socket(pg_volume.config, proxy))
    await meta.start()
    made = Filesystem(meta, MemoryBlocks())
    yield made
    await made.close()


async def work(fs: Filesystem, name: bytes) -> None:
    """One of everything, checked."""
    folder = await fs.mkdir(ROOT_INO, name, 0o755, ME)
    _, handle = await fs.create(folder.ino, b"f", 0o600, os.O_RDWR | os.O_APPEND, ME)
    await handle.write(0, name)
    await handle.fsync()
    await handle.write(0, b"!")
    await handle.close()
    await fs.rename(folder.ino, b"f", ROOT_INO, name + b".f")
    handle = await fs.open(handle.ino, os.O_RDONLY)
    assert await handle.read(0, 1000) == name + b"!"
    await handle.close()
    await fs.unlink(ROOT_INO, name + b".f")
    await fs.rmdir(ROOT_INO, name)


@pytest.mark.parametrize(
    "toxic",
    [
        Toxic(latency=0.03, jitter=0.02),
        Toxic(slices=1),
        Toxic(bandwidth=20_000),
        Toxic(limit=30_000),
        Toxic(slow_close=0.2),
    ],
    ids=["far away", "single bytes", "narrow", "cut every 30 kB", "slow close"],
)
async def test_a_bad_network_costs_time_only(
    fs: Filesystem, proxy: FaultProxy, toxic: Toxic
) -> None:
    proxy.toxic = toxic
    proxy.reset()
    await work(fs, b"name")
    proxy.toxic = Toxic()


async def test_half_a_second_away(fs: Filesystem, proxy: FaultProxy) -> None:
    proxy.toxic = Toxic(latency=0.25)
    proxy.reset()
    await fs.mkdir(ROOT_INO, b"far", 0o755, ME)
    await fs.sync_names()
    proxy.toxic = Toxic()
    await fs.lookup(ROOT_INO, b"far")


async def test_a_call_in_a_black_hole_is_made_again_when_the_network_is_back(
    fs: Filesystem, proxy: FaultProxy
) -> None:
    await work(fs, b"before")
    proxy.toxic = Toxic(black_hole=True)
    working = asyncio.create_task(work(fs, b"name"))
    done, _ = await asyncio.wait([working], timeout=7.0)
    assert not done
    proxy.toxic = Toxic()
    back = asyncio.get_running_loop().time()
    await asyncio.wait_for(working, 12)
    print(f"served again after {asyncio.get_running_loop().time() - back:.2f} s")


async def test_a_call_that_waits_for_a_lock_is_not_taken_for_lost(
    pg_volume: InPostgres, fs: Filesystem, proxy: FaultProxy
) -> None:
    await work(fs, b"before")
    blocker = await pg_volume.admin()
    try:
        transaction = blocker.transaction()
        await transaction.start()
        await blocker.execute("SELECT 1 FROM inode WHERE ino = 1 FOR UPDATE")
        working = asyncio.create_task(work(fs, b"name"))
        async with asyncio.timeout(DEADLINE):
            while not (first := await blocked(pg_volume)):
                await asyncio.wait([working], timeout=0.05)
        # Longer than the outage probe needs to find that the server answers.
        await asyncio.wait([working], timeout=4.0)
        assert await blocked(pg_volume) == first
        await transaction.rollback()
        await working
    finally:
        await blocker.close()


async def blocked(volume: InPostgres) -> set[int]:
    """Backends of the volume that wait for a lock."""
    found = await volume.rows(
        "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE NOT l.granted AND a.usename = $1",
        volume.schema,
    )
    return {row[0] for row in found}


PASSING = ["40001", "40P01", "53200", "57014", "57P01"]


@pytest.mark.parametrize("code", PASSING)
async def test_a_passing_refusal_is_repeated(
    pg_volume: InPostgres, fs: Filesystem, code: str
) -> None:
    await refuse(pg_volume, code)
    working = asyncio.create_task(work(fs, b"name"))
    done, _ = await asyncio.wait([working], timeout=0.5)
    assert not done
    await pg_volume.rows("DROP TRIGGER refuse ON op_result")
    await working


async def test_a_full_database_is_told_at_once(pg_volume: InPostgres, fs: Filesystem) -> None:
    await refuse(pg_volume, "53100")
    with pytest.raises(NoSpace):
        await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    await pg_volume.rows("DROP TRIGGER refuse ON op_result")
    await work(fs, b"name")


async def refuse(volume: InPostgres, code: str) -> None:
    """From now on every change is refused with this code."""
    await volume.rows(
        f"CREATE FUNCTION {volume.schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{code}'; END $$"
    )
    await volume.rows(
        "CREATE TRIGGER refuse BEFORE UPDATE ON op_result"
        f" FOR EACH ROW EXECUTE FUNCTION {volume.schema}.refuse()"
    )


async def test_no_free_connection_costs_time_only(
    pg_volume: InPostgres, fs: Filesystem, proxy: FaultProxy
) -> None:
    await work(fs, b"before")
    await pg_volume.rows(f"ALTER ROLE {pg_volume.schema} CONNECTION LIMIT 0")
    proxy.reset()
    working = asyncio.create_task(work(fs, b"name"))
    done, _ = await asyncio.wait([working], timeout=0.5)
    assert not done
    await pg_volume.rows(f"ALTER ROLE {pg_volume.schema} CONNECTION LIMIT -1")
    await working


async def test_a_standby_is_waited_for(
    pg_volume: InPostgres, fs: Filesystem, proxy: FaultProxy
) -> None:
    await work(fs, b"before")
    role = pg_volume.schema
    await pg_volume.rows(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    proxy.reset()
    working = asyncio.create_task(work(fs, b"name"))
    done, _ = await asyncio.wait([working], timeout=0.5)
    assert not done
    await pg_volume.rows(f"ALTER ROLE {role} RESET default_transaction_read_only")
    await working


@pytest.mark.parametrize("way", ["off", "black hole", "refusing"])
async def test_another_address_takes_over(pg_volume: InPostgres, way: str) -> None:
    upstream = socket_of(pg_volume.config.meta_dsn)
    first = FaultProxy(("127.0.0.1", 0), upstream)
    second = FaultProxy(("127.0.0.1", 0), upstream)
    try:
        second.down()
        meta = PostgresMeta(through_addresses(pg_volume.config, first, second))
        await meta.start()
        fs = Filesystem(meta, MemoryBlocks())
        await work(fs, b"before")
        second.up()
        if way == "black hole":
            first.toxic = Toxic(black_hole=True)
        elif way == "refusing":
            first.toxic = Toxic(refuse=True)
            first.reset()
        else:
            first.down()
        await asyncio.wait_for(work(fs, b"after"), 40)
        assert second.connections
        await fs.close()
    finally:
        first.close()
        second.close()


@pytest.mark.promise("D4")
async def test_an_outage_longer_than_the_deadline_is_told_and_no_success_hides_it(
    pg_volume: InPostgres, proxy: FaultProxy
) -> None:
    meta = PostgresMeta(through_socket(pg_volume.config, proxy))
    await meta.start()
    fs = Filesystem(meta, MemoryBlocks())
    _, handle = await fs.create(ROOT_INO, b"f", 0o600, os.O_RDWR, ME)
    bystander = await fs.open(handle.ino, os.O_RDWR)
    await handle.write(0, b"once")
    await handle.fsync()
    with provoked("wrkfs.meta.postgres.sessions"):
        proxy.down()
        # Only now: what is asked of a server that is there may take its time.
        meta._links._deadline = 1.0
        await handle.write(0, b"lost")
        with pytest.raises(Unavailable):
            await handle.fsync()
        with pytest.raises(Unavailable):
            await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
        meta._links._deadline = LONGEST
        proxy.up()
        await handle.write(4, b"kept")
        await handle.fsync()
        with pytest.raises(Unavailable):
            await bystander.fsync()
        assert await handle.read(0, 10) == b"oncekept"
        await bystander.close()
        await handle.close()
        await fs.close()
