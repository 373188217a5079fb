"""Limits that a volume's role could reset are kept from outside; what it forged is corrected."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.workspaces.provision import Provisioner
from boxd.workspaces.watchdog import LIMIT, TICK, DatabaseWatchdog, Ended
from tests.harness.volumes.metastore import let_go
from tests.harness.wait import until
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plugins.strict_logs import AssertLogs

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n"
CROSS_JOIN = (
    "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b, "
    "generate_series(1, 100000) c"
)
FREE = ("SET statement_timeout = 0", "SET idle_in_transaction_session_timeout = 0")
"""What the attacker does first: no limit of its own session remains."""

pytestmark = pytest.mark.promise("S1")


@pytest.fixture
async def roles(pg_database: str) -> AsyncIterator[tuple[str, str, str]]:
    """Administrator's DSN, and DSNs of an attacker and of somebody else."""
    provisioner = Provisioner(pg_database)
    await provisioner.prepare()
    made = [await provisioner.create() for _ in range(2)]
    try:
        first, second = (provisioner.dsn(*one) for one in made)
        yield pg_database, first, second
    finally:
        for name, _ in made:
            await provisioner.drop(name)


async def end_overdue(watchdog: DatabaseWatchdog) -> list[Ended]:
    """One round of the watchdog: it ends overlong transactions."""
    async with watchdog._connected() as connection:
        return await watchdog._end_overdue(connection)


async def recount(watchdog: DatabaseWatchdog, name: str) -> tuple[int, int]:
    """One recount of a volume; returns the error of its counters in bytes and inodes."""
    async with watchdog._connected() as connection:
        return await watchdog._recount(connection, name)


@asynccontextmanager
async def freed(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the attacker, with all its limits lifted."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in FREE:
            await connection.execute(statement)
        yield connection
    finally:
        connection.terminate()


async def schema_of(dsn: str) -> str:
    """The role's own schema."""
    async with freed(dsn) as connection:
        found: str = await connection.fetchval("SELECT current_schema()")
        return found


async def test_the_promised_time_is_kept() -> None:
    assert LIMIT + 2 * TICK <= 35


@pytest.mark.parametrize("statement", [ENDLESS, CROSS_JOIN])
async def test_an_endless_statement_is_ended(
    roles: tuple[str, str, str], statement: str, assert_logs: AssertLogs
) -> None:
    admin, attacker, other = roles
    watchdog = DatabaseWatchdog(admin, limit=0.3, tick=0.05)
    async with freed(attacker) as connection, freed(other) as bystander:
        with assert_logs("ended, its transaction took more than"):
            running = asyncio.create_task(connection.execute(statement, timeout=60))
            watchdog.start()
            try:
                with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                    await running
            finally:
                await watchdog.close()
        assert await bystander.fetchval("SELECT count(*) FROM inode") == 1


async def test_idle_transactions_are_ended_and_idle_connections_are_not(
    roles: tuple[str, str, str], assert_logs: AssertLogs
) -> None:
    admin, attacker, other = roles
    watchdog = DatabaseWatchdog(admin, limit=0.2)
    async with freed(attacker) as idle, freed(attacker) as listener, freed(other) as bystander:
        await idle.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await idle.fetchval("SELECT count(*) FROM inode")
        await listener.execute("LISTEN guessed")
        await listener.execute("BEGIN")
        await bystander.fetchval("SELECT 1")
        name = await schema_of(attacker)
        with assert_logs("idle in transaction"):
            ended = set()
            async with asyncio.timeout(30):
                while not (idle.is_closed() and listener.is_closed()):
                    # One that was told to end may still be seen by the next look.
                    ended.update(await end_overdue(watchdog))
            assert ended == {Ended(name, "idle in transaction")}
        assert await bystander.fetchval("SELECT 1") == 1
        assert await end_overdue(watchdog) == []


async def test_an_old_snapshot_holds_back_nobodys_vacuum_for_long(
    roles: tuple[str, str, str], assert_logs: AssertLogs
) -> None:
    admin, attacker, _ = roles
    query = "SELECT min(age(backend_xmin)) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL "
    query += "AND usename ~ '^v[0-9a-f]{32}$'"
    observer = await asyncpg.connect(admin)
    try:
        async with freed(attacker) as connection:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.fetchval("SELECT 1")
            assert await observer.fetchval(query) is not None
            with assert_logs("ended, its transaction"):
                assert len(await end_overdue(DatabaseWatchdog(admin, limit=0.0))) == 1
            async with asyncio.timeout(30):
                while await observer.fetchval(query) is not None:
                    pass
    finally:
        await observer.close()


async def test_memory_of_one_process_is_bounded(roles: tuple[str, str, str]) -> None:
    _, attacker, other = roles
    async with freed(attacker) as connection, freed(other) as bystander:
        assert await connection.fetchval("SELECT current_setting('max_worker_processes')") == "0"
        before = await bystander.fetchval("SELECT pg_postmaster_start_time()")
        await connection.execute("SET work_mem = '64GB'")
        greedy = (
            "SELECT count(*) FROM (SELECT repeat(md5(i::text), 3000) AS t "
            "FROM generate_series(1, 100000) i ORDER BY 1 OFFSET 0) s"
        )
        with pytest.raises((asyncpg.OutOfMemoryError, asyncpg.ConfigurationLimitExceededError)):
            await connection.fetchval(greedy, timeout=60)
        assert await bystander.fetchval("SELECT pg_postmaster_start_time()") == before
        assert await connection.fetchval("SELECT 1") == 1, "the server did not restart"


async def test_forged_use_is_corrected(
    roles: tuple[str, str, str], assert_logs: AssertLogs
) -> None:
    admin, attacker, other = roles
    store = StoreConfig("http://127.0.0.1:9", "b", "p", "r", "a", "s")
    names = [await schema_of(dsn) for dsn in (attacker, other)]
    metas = [
        PostgresMeta(VolumeConfig("v", name, dsn, store))
        for name, dsn in zip(names, (attacker, other), strict=True)
    ]
    watchdog = DatabaseWatchdog(admin)
    for meta in metas:
        await meta.start()
        await meta.mkdir(ROOT_INO, b"d", 0o755, Caller(0, 0))
    try:
        async with freed(attacker) as connection:
            for forged in (
                "UPDATE usage SET bytes = bytes - 10^15, inodes = inodes - 1000",
                "UPDATE usage SET bytes = 9223372036854775807, inodes = -9223372036854775808",
                "UPDATE op_result SET bytes = bytes - 10^15 WHERE slot = 1",
            ):
                await connection.execute(forged)
                with assert_logs("its counters were wrong"):
                    assert await recount(watchdog, names[0]) != (0, 0)
                found = await metas[0].statfs()
                assert (found.bytes_used, found.inodes_used) == (0, 1)
                assert await recount(watchdog, names[0]) == (0, 0)
        assert await recount(watchdog, names[1]) == (0, 0)
    finally:
        for meta in metas:
            await meta.close()


async def test_recounts_disturb_no_calls_and_no_locks_disturb_recounts(
    roles: tuple[str, str, str], assert_logs: AssertLogs
) -> None:
    admin, attacker, _ = roles
    name = await schema_of(attacker)
    store = StoreConfig("http://127.0.0.1:9", "b", "p", "r", "a", "s")
    meta = PostgresMeta(VolumeConfig("v", name, attacker, store))
    await meta.start()
    watchdog = DatabaseWatchdog(admin)

    async def work(who: int) -> None:
        for number in range(50):
            await meta.mkdir(ROOT_INO, b"%d-%d" % (who, number), 0o755, Caller(0, 0))

    working = [asyncio.create_task(work(who)) for who in range(4)]
    while not all(task.done() for task in working):
        assert await recount(watchdog, name) == (0, 0)
    await asyncio.gather(*working)
    await meta.close()
    async with freed(attacker) as connection:
        await connection.execute("UPDATE usage SET bytes = bytes + 1")
        await connection.execute("BEGIN")
        await connection.execute("UPDATE usage SET bytes = bytes")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await recount(watchdog, name)
        await connection.execute("ROLLBACK")
    with assert_logs("were wrong by -1 bytes"):
        assert await recount(watchdog, name) == (-1, 0)


async def test_the_watch_outlives_an_outage(
    roles: tuple[str, str, str], assert_logs: AssertLogs
) -> None:
    admin, attacker, _ = roles
    watchdog = DatabaseWatchdog(admin, limit=0.1, tick=0.05, recount_every=0.05)
    with assert_logs("watchdog cannot work|ended, its transaction"):
        watchdog.start()
        observer = await asyncpg.connect(admin)
        try:
            query = (
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            async with asyncio.timeout(30):
                while not await observer.fetchval(query):
                    pass
        finally:
            await observer.close()
        async with freed(attacker) as connection:
            await connection.execute("BEGIN")
            await until(connection.is_closed)
        await watchdog.close()


async def test_psql_gets_nowhere(roles: tuple[str, str, str]) -> None:
    _, attacker, other = roles
    victim = await schema_of(other)
    attempts = (
        r"\copy (SELECT 1) TO PROGRAM 'touch /tmp/escaped-by-psql'",
        "COPY (SELECT 1) TO PROGRAM 'touch /tmp/escaped-by-psql'",
        f"TABLE {victim}.inode",
        f"SET search_path = {victim}; SELECT wrkfs.lookup(1, 'a')",
        f"SET ROLE {victim}",
        r"\i /proc/self/environ",
    )
    environment = {"PATH": os.environ["PATH"], "PGCONNECT_TIMEOUT": "10"}
    for attempt in attempts[1:5]:
        command = ["psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", attacker, "-c", attempt]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, env=environment, check=False
        )
        assert done.returncode != 0, attempt
        assert b"ERROR" in done.stderr, (attempt, done.stderr)
    command = ["psql", "-X", "-A", "-t", "-d", attacker]
    everything = rb"\d *.*" + b"\n" + rb"\du+" + b"\n" + rb"\l+" + b"\n" + rb"\df wrkfs.*" + b"\n"
    done = await asyncio.to_thread(
        subprocess.run, command, input=everything, capture_output=True, env=environment, check=False
    )
    assert b"canary" not in done.stdout
    assert b"SHA256:" not in done.stdout


async def test_listening_tells_nothing_and_flooding_changes_nothing(
    roles: tuple[str, str, str],
) -> None:
    _, attacker, other = roles
    victim = await schema_of(other)
    store = StoreConfig("http://127.0.0.1:9", "b", "p", "r", "a", "s")
    meta = PostgresMeta(VolumeConfig("v", victim, other, store))
    await meta.start()
    heard: list[object] = []
    guesses = [victim, "boxd", "wrkfs", *(f"{word}_{n}" for word in ("s", "c") for n in range(500))]
    try:
        async with freed(attacker) as listener, freed(attacker) as flooder:
            for guess in guesses:
                await listener.add_listener(guess, lambda *event: heard.append(event))
            working = asyncio.create_task(
                flooder.execute(
                    "SELECT count(pg_notify($1, repeat('x', 7000) || i::text)) "
                    "FROM generate_series(1, 5000) i",
                    "flood",
                    timeout=60,
                )
            )
            for number in range(100):
                name = b"%d" % number
                await meta.mkdir(ROOT_INO, name, 0o755, Caller(0, 0))
                await meta.rename(ROOT_INO, name, ROOT_INO, b"moved")
                await meta.rmdir(ROOT_INO, b"moved")
            await working
            assert await listener.fetchval("SELECT 1") == 1
            assert heard == []
            assert await meta.readdir(ROOT_INO, 0, 10) == []
    finally:
        await meta.close()


async def test_what_is_counted_is_what_fsck_counts(roles: tuple[str, str, str]) -> None:
    admin, attacker, _ = roles
    name = await schema_of(attacker)
    store = StoreConfig("http://127.0.0.1:9", "b", "p", "r", "a", "s")
    meta = PostgresMeta(VolumeConfig("v", name, attacker, store))
    await meta.start()
    try:
        found, _ = await meta.create(ROOT_INO, b"f", 0o644, Caller(0, 0), exclusive=True)
        ino = found.attr.ino
        for size in (5_000, 100_000_000, 0, 7):
            await meta.setattr(ino, SetAttr(size=size))
            assert await recount(DatabaseWatchdog(admin), name) == (0, 0)
        await meta.unlink(ROOT_INO, b"f")
        assert await recount(DatabaseWatchdog(admin), name) == (0, 0)
        await let_go(meta, ino)
        assert await recount(DatabaseWatchdog(admin), name) == (0, 0)
    finally:
        await meta.close()
