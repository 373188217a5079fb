"""All rows out of one database and into another, on a real PostgreSQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.errors import Conflict, Unavailable
from boxd.model.box import BoxState
from boxd.store.export import drop_service, importing, open_snapshot
from boxd.store.migrate import migrations
from tests.harness.control_store.contents import BOXES, INSTANCE, LATER, NOW, OWNER, fill, opened
from tests.harness.servers.pg import fresh_database

if TYPE_CHECKING:
    from boxd.store.export import HostLosses


async def exported(dsn: str) -> tuple[int, list[tuple[str, str]]]:
    """Schema version and rows of a database."""
    async with open_snapshot(dsn) as now:
        assert now.instance == INSTANCE
        return now.schema, [row async for row in now.rows()]


async def bring_in(dsn: str, schema: int, rows: list[tuple[str, str]]) -> None:
    """Rows as they were."""
    async with importing(dsn) as target:
        await target.create_schema(schema)
        for table, row in rows:
            await target.add(table, row)
        await target.finish()


async def forget_host(dsn: str, *, objects: bool = False) -> HostLosses:
    """Says that what stood on the host is gone."""
    async with importing(dsn) as target:
        return await target.discard_host_state("lost", LATER, objects=objects, settings=["here"])


@pytest.fixture
async def filled(pg_database: str) -> str:
    """A database with something in every table."""
    await fill(pg_database)
    return pg_database


async def test_every_row_of_every_table_comes_back_the_same(pg: str, filled: str) -> None:
    schema, rows = await exported(filled)
    assert schema == len(migrations())
    tables = {table for table, _ in rows}
    known = await _fetch(filled, "SELECT tablename FROM pg_tables WHERE schemaname = 'boxd'")
    assert tables == {row["tablename"] for row in known} - {"migration"}
    with fresh_database(pg) as copy:
        await bring_in(copy, schema, rows)
        assert await exported(copy) == (schema, rows)
        async with opened(filled) as old, opened(copy) as new:
            assert await new.all_boxes() == await old.all_boxes()
            assert sorted(await new.all_boxes(), key=lambda one: one.name) == sorted(
                BOXES, key=lambda one: one.name
            )
            assert await new.profiles(OWNER) == await old.profiles(OWNER)
            assert await new.all_snapshots() == await old.all_snapshots()
            assert await new.list_volumes() == await old.list_volumes()
            assert await new.list_workspaces(OWNER) == await old.list_workspaces(OWNER)
            assert await new.shares(OWNER) == await old.shares(OWNER)
            assert await new.accounts() == await old.accounts()
            assert await new.audits(10) == await old.audits(10)
            assert await new.secrets(OWNER) == await old.secrets(OWNER)
            assert await new.agent(OWNER) == await old.agent(OWNER)
            assert await new.asks(OWNER) == await old.asks(OWNER)
            assert await new.canvas(OWNER, "ws1", "plan") == await old.canvas(OWNER, "ws1", "plan")
            visit = await old.find_proxy_session(bytes(range(1, 33)))
            assert await new.find_proxy_session(bytes(range(1, 33))) == visit is not None
            key = await new.find_key(bytes(range(32)), NOW)
            assert key is not None
            assert (key.owner, key.expires) == (OWNER, LATER)


async def test_many_rows_go_through(pg: str, filled: str) -> None:
    async with opened(filled) as store:
        for number in range(1200):
            await store.add_workspace(OWNER, f"many{number}", NOW)
    schema, rows = await exported(filled)
    with fresh_database(pg) as copy:
        await bring_in(copy, schema, rows)
        async with opened(copy) as new:
            assert len(await new.workspaces(OWNER)) == 1201


async def test_changes_beside_an_export_are_not_in_it(filled: str) -> None:
    async with open_snapshot(filled) as now, opened(filled) as store:
        await store.add_workspace(OWNER, "late", NOW)
        await store.remove_box(BOXES[0].id)
        rows = [row async for row in now.rows()]
    assert not any('"late"' in row for _, row in rows)
    assert any(BOXES[0].id in row for _, row in rows)


async def test_rows_of_an_older_schema_are_brought_up(pg: str) -> None:
    with fresh_database(pg) as old:
        async with importing(old) as target:
            await target.create_schema(1)
            connection = target._connection
            await connection.execute("INSERT INTO boxd.setting VALUES ('instance', $1)", INSTANCE)
            await connection.execute(
                "INSERT INTO boxd.box (id, owner, name, image, flavor, cpus, mem_mb, state, "
                "detail, backend, host_key, created, ephemeral, drive) VALUES (repeat('a', 32), "
                "$1, 'web', 'debian', '', 1, 512, 'running', '', 'runc', 'key', now(), false, "
                "true)",
                OWNER,
            )
        schema, rows = await exported(old)
    assert schema == 1
    with fresh_database(pg) as copy:
        await bring_in(copy, schema, rows)
        async with opened(copy) as new:
            (found,) = await new.all_boxes()
    assert (found.name, found.pids, found.egress) == ("web", 512, "all")


async def test_what_stood_on_the_lost_host_is_told_so(filled: str) -> None:
    lost = await forget_host(filled)
    assert (lost.boxes, lost.snapshots, lost.drives) == (3, 1, 1)
    async with opened(filled) as store:
        boxes = {one.name: one for one in await store.all_boxes()}
        assert set(boxes) == {"run", "slept", "broken"}
        assert {one.box_id for one in await store.shares(OWNER)} == {
            one.id for one in boxes.values()
        }
        for one in boxes.values():
            assert (one.state, one.detail, one.since) == (BoxState.SUSPENDED, "lost", LATER)
            assert (one.memory, one.step, one.idle_since) == (False, 0, None)
        assert boxes["slept"].deadline == LATER
        assert boxes["broken"].durable
        assert boxes["run"].grace == BOXES[0].grace
        assert await store.all_snapshots() == []
        assert await store.list_volumes() == []
        assert await store.setting("here") is None
        assert await store.setting("instance") == INSTANCE


async def test_a_drive_stays_where_database_and_objects_still_have_it(filled: str) -> None:
    schema = "CREATE SCHEMA backup_test_volume"
    role = "CREATE ROLE backup_test_volume"
    name = "UPDATE boxd.volume SET role = 'backup_test_volume', schema = 'backup_test_volume'"
    await _fetch(filled, schema)
    await _fetch(filled, role)
    try:
        await _fetch(filled, name)
        assert (await forget_host(filled, objects=True)).drives == 0
        await _fetch(filled, "DROP SCHEMA backup_test_volume")
        assert (await forget_host(filled, objects=True)).drives == 1
    finally:
        await _fetch(filled, "DROP ROLE backup_test_volume")


async def test_a_database_with_a_service_is_refused_and_stays(pg: str, filled: str) -> None:
    schema, rows = await exported(filled)
    with pytest.raises(Conflict, match=r"already has a service.*--keep-database"):
        await bring_in(filled, schema, rows)
    assert await exported(filled) == (schema, rows)
    async with importing(filled) as target:
        await target.check_instance(INSTANCE)
    with pytest.raises(Conflict, match="not have the service of this backup"):
        async with importing(filled) as target:
            await target.check_instance("0" * 32)
    with fresh_database(pg) as empty, pytest.raises(Conflict, match="not have the service"):
        async with importing(empty) as target:
            await target.check_instance(INSTANCE)


async def test_an_import_that_fails_leaves_nothing(pg: str, filled: str) -> None:
    schema, rows = await exported(filled)
    with fresh_database(pg) as copy:
        for bad in (("nonesuch", "{}"), ("box", json.dumps({"id": "not an id"}))):
            with pytest.raises(Unavailable):
                await bring_in(copy, schema, [*rows, bad])
            assert await _fetch(copy, "SELECT 1 FROM pg_namespace WHERE nspname = 'boxd'") == []


async def test_errors_do_not_quote_rows(pg: str, filled: str) -> None:
    schema, rows = await exported(filled)
    canary = "canary-7f3a"
    row = json.dumps({"id": canary, "owner": canary})
    with fresh_database(pg) as copy, pytest.raises(Unavailable) as caught:
        await bring_in(copy, schema, [*rows, ("box", row)])
    assert canary not in str(caught.value)


async def test_a_database_without_service_has_no_moment(pg_database: str) -> None:
    with pytest.raises(Unavailable, match="no service yet"):
        async with open_snapshot(pg_database):
            pass
    async with opened(pg_database):
        pass
    with pytest.raises(Unavailable, match="no service yet"):
        async with open_snapshot(pg_database):
            pass


async def test_a_newer_database_is_refused(filled: str) -> None:
    await _fetch(filled, "INSERT INTO boxd.migration VALUES (9999, 'later')")
    with pytest.raises(Unavailable, match="newer boxd"):
        async with open_snapshot(filled):
            pass


async def test_a_server_that_is_out_is_told(tmp_path: object) -> None:
    with pytest.raises(Unavailable, match="check that PostgreSQL is running"):
        async with open_snapshot(f"postgresql://x@/boxd?host={tmp_path}"):
            pass


async def test_an_import_can_be_taken_back(filled: str) -> None:
    await drop_service(filled)
    await drop_service(filled)
    with pytest.raises(Unavailable, match="no service yet"):
        async with open_snapshot(filled):
            pass


async def _fetch(dsn: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()
