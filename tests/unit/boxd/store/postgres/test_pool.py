"""What the pool of PostgresStore does when connections break; the rest is the contract suite."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from boxd.errors import Unavailable
from boxd.store.postgres.pool import PoolUse, summary
from boxd.store.postgres.store import PostgresStore
from tests.harness.wait import until

_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def test_broken_connections_are_replaced(pg_database: str) -> None:
    store = PostgresStore(pg_database)
    await store.start()
    try:
        await store.put_setting("a", "1")
        killer = await asyncpg.connect(pg_database)
        try:
            assert await killer.fetch(_OTHERS)
        finally:
            await killer.close()
        assert await store.setting("a") == "1"
    finally:
        await store.close()


async def test_goodbye_that_meets_a_statement_is_repeated(pg_database: str) -> None:
    # asyncpg raises InternalClientError when the server's farewell came between two statements.
    store = PostgresStore(pg_database)
    await store.start()
    try:
        for number in range(20):
            await asyncio.gather(*(store.put_setting(f"k{i}", str(number)) for i in range(4)))
            killer = await asyncpg.connect(pg_database)
            try:
                await killer.fetch(_OTHERS)
            finally:
                await killer.close()
            await asyncio.sleep(0)
            assert await store.setting("k0") == str(number)
    finally:
        await store.close()


async def test_absent_server_is_unavailable_after_the_deadline() -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:1/none", deadline=0.2)
    with pytest.raises(Unavailable, match="PostgreSQL"):
        await store.start()
    await store.close()


async def test_use_before_start_is_refused() -> None:
    with pytest.raises(Unavailable, match="not connected"):
        await PostgresStore("postgresql://nobody@127.0.0.1:1/none", deadline=0.2).setting("a")


async def test_statements_that_wait_for_a_connection_are_counted(pg_database: str) -> None:
    store = PostgresStore(pg_database, connections=2)
    assert store.use == PoolUse(2, 0, 0, 0)
    await store.start()
    try:
        assert store.use == PoolUse(2, 0, 1, 0)
        blocker = await asyncpg.connect(pg_database)
        try:
            async with blocker.transaction():
                await blocker.execute("LOCK boxd.setting")
                reads = [asyncio.create_task(store.setting("a")) for _ in range(5)]
                await until(lambda: store.use == PoolUse(2, 2, 0, 3))
            await asyncio.gather(*reads)
        finally:
            await blocker.close()
        assert store.use == PoolUse(2, 0, 2, 0)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("SELECT * FROM boxd.box WHERE id = $1", "select box"),
        ("INSERT INTO boxd.api_key (id) VALUES ($1)", "insert api_key"),
        ("UPDATE boxd.box SET state = $2 WHERE id = $1", "update box"),
        ("SELECT 1", "select"),
    ],
)
def test_a_statement_is_named_after_its_verb_and_table(query: str, name: str) -> None:
    assert summary(query) == name
