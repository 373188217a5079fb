"""Tables, grants and migrations of a volume; rows that only an attacker writes."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

import wrkfs.meta
from tests.harness.volumes.extents import Objects
from wrkfs import errors
from wrkfs.meta.sql.migrate import (
    MigrationError,
    create_volume_schema,
    install_functions,
    migrate_volume,
)
from wrkfs.types import ROOT_INO, Caller, Commit, Ino, RenameFlags, SetAttr

if TYPE_CHECKING:
    from tests.harness.volumes.metastore import InPostgres

ME = Caller(0, 0)

COLUMNS = """SELECT c.relname, c.relpersistence, c.reloptions, a.attnum, a.attname, a.atttypid,
    a.attnotnull, a.attstorage, pg_get_expr(d.adbin, d.adrelid)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = $1::regnamespace ORDER BY 1, 4"""
CONSTRAINTS = """SELECT c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid)
    FROM pg_constraint c WHERE c.connamespace = $1::regnamespace ORDER BY 1, 2"""


async def test_the_reference_describes_the_migrated_tables(pg_volume: InPostgres) -> None:
    text = (Path(wrkfs.meta.__file__).parent / "sql/schema.sql").read_text(encoding="utf-8")
    conn = await pg_volume.admin()
    try:
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute("CREATE SCHEMA reference")
        await conn.execute("SET LOCAL search_path = reference")
        await conn.execute(text)
        reference = [
            [tuple(row) for row in await conn.fetch(query, "reference")]
            for query in (COLUMNS, CONSTRAINTS)
        ]
        await conn.execute(f"SET LOCAL search_path = {pg_volume.schema}")
        migrated = [
            [tuple(row) for row in await conn.fetch(query, pg_volume.schema)]
            for query in (COLUMNS, CONSTRAINTS)
        ]
        await transaction.rollback()
    finally:
        await conn.close()
    assert reference == migrated
    assert len(reference[0]) > 60


def test_every_column_of_the_reference_is_explained_or_constrained() -> None:
    text = (Path(wrkfs.meta.__file__).parent / "sql/schema.sql").read_text(encoding="utf-8")
    tables = re.findall(r"((?:--[^\n]*\n)+)CREATE (?:UNLOGGED )?TABLE (\w+)", text)
    assert len(tables) == len(re.findall(r"CREATE (?:UNLOGGED )?TABLE", text)) == 26


async def test_installing_again_changes_nothing(pg_volume: InPostgres) -> None:
    conn = await pg_volume.admin()
    try:
        before = await conn.fetch("SELECT oid FROM pg_proc ORDER BY oid")
        await install_functions(conn)
        assert await conn.fetch("SELECT oid FROM pg_proc ORDER BY oid") == before
        assert await migrate_volume(conn, pg_volume.schema) == 6
        with pytest.raises(asyncpg.DuplicateSchemaError):
            await create_volume_schema(conn, pg_volume.schema, pg_volume.schema)
        with pytest.raises(ValueError, match="invalid name"):
            await create_volume_schema(conn, 'x"; DROP', pg_volume.schema)
    finally:
        await conn.close()


async def test_other_functions_are_replaced_under_running_sessions(pg_volume: InPostgres) -> None:
    meta = await pg_volume.session()
    await meta.mkdir(ROOT_INO, b"a", 0o755, ME)
    conn = await pg_volume.admin()
    try:
        await conn.execute("UPDATE wrkfs.release SET digest = 'another'")
        await install_functions(conn)
        assert await conn.fetchval("SELECT digest FROM wrkfs.release") != "another"
    finally:
        await conn.close()
    await meta.mkdir(ROOT_INO, b"b", 0o755, ME)
    assert (await meta.lookup(ROOT_INO, b"a")).is_dir
    assert len(await meta.readdir(ROOT_INO, 0, 10)) == 2


async def test_tables_of_a_newer_release_are_left_alone(pg_volume: InPostgres) -> None:
    conn = await pg_volume.admin()
    try:
        await conn.execute("UPDATE volume SET schema_version = 1000")
        with pytest.raises(MigrationError):
            await migrate_volume(conn, pg_volume.schema)
    finally:
        await conn.close()


async def test_the_role_has_exactly_the_reviewed_rights(pg_volume: InPostgres) -> None:
    rows = await pg_volume.rows(
        "SELECT table_name, string_agg(privilege_type, ' ' ORDER BY privilege_type)"
        " FROM information_schema.role_table_grants WHERE grantee = $1 GROUP BY 1",
        pg_volume.schema,
    )
    every = "DELETE INSERT SELECT UPDATE"
    assert {row[0]: row[1] for row in rows} == {
        "volume": "SELECT",
        "counter": "SELECT UPDATE",
        "usage": "SELECT UPDATE",
        "upkeep": "SELECT UPDATE",
        "slice_range": every,
        "trash": every,
        "removed_link": every,
        "delegation": every,
        "reservation": every,
        "shared_slice": every,
        "snapshot": every,
        "inode": every,
        "dentry": every,
        "slice": every,
        "inline": every,
        "symlink": every,
        "xattr": every,
        "session": every,
        "lock_file": every,
        "file_lock": every,
        "lock_waiter": every,
        "lease": every,
        "recall": every,
        "sustained": every,
        "deleted": every,
        "op_result": every,
    }
    owned = await pg_volume.rows(
        "SELECT 1 FROM pg_class WHERE relowner = $1::regrole", pg_volume.schema
    )
    assert owned == []
    conn = await asyncpg.connect(pg_volume.config.meta_dsn)
    try:
        assert await conn.fetchval("SHOW search_path") == pg_volume.schema
        for statement in (
            "UPDATE volume SET bytes_limit = NULL",
            "TRUNCATE inode",
            "DROP TABLE inode",
            f"CREATE TABLE {pg_volume.schema}.mine ()",
            "CREATE TABLE wrkfs.mine ()",
            "CREATE FUNCTION wrkfs.mine() RETURNS void LANGUAGE sql AS ''",
            "SELECT * FROM wrkfs.release",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await conn.execute(statement)
    finally:
        await conn.close()


BAD_ROWS = [
    "UPDATE inode SET size = -1 WHERE ino > 1",
    "UPDATE inode SET size = 3 WHERE ino > 1",
    "UPDATE inode SET nlink = -1 WHERE ino > 1",
    "UPDATE inode SET mode = 0 WHERE ino > 1",
    "UPDATE inode SET mode = mode | 65536 WHERE ino > 1",
    "UPDATE inode SET uid = -1 WHERE ino > 1",
    "UPDATE inode SET gid = 4294967296 WHERE ino > 1",
    "UPDATE dentry SET name = '\\x2e'",
    "UPDATE dentry SET name = '\\x2e2e'",
    "UPDATE dentry SET name = '\\x612f62'",
    "UPDATE dentry SET name = '\\x6100'",
    "UPDATE dentry SET name = ''",
    "UPDATE dentry SET name = decode(repeat('61', 256), 'hex')",
    "UPDATE dentry SET cookie = 0",
    "UPDATE slice SET pos = -1",
    "UPDATE slice SET pos = 9223372036854775807",
    "UPDATE slice SET length = size + 1",
    "UPDATE slice SET length = 0",
    "UPDATE slice SET off = 9223372036854775807",
    "UPDATE slice SET off = -1",
    "UPDATE slice SET size = 9223372036854775807",
    "UPDATE slice SET slice_id = -7",
    "UPDATE slice SET slice_id = -7, is_inline = false",
    "UPDATE slice SET is_inline = false",
    "UPDATE inline SET data = ''",
    "UPDATE inline SET data = data || data",
    "DELETE FROM inline",
]


@pytest.mark.parametrize("statement", BAD_ROWS)
async def test_impossible_rows_are_not_believed(pg_volume: InPostgres, statement: str) -> None:
    pg_volume.verify = False
    meta = await pg_volume.session()
    file = (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    await meta.commit(Commit(file, (Objects().inline(0, b"12345"),)))
    conn = await asyncpg.connect(pg_volume.config.meta_dsn)
    try:
        await conn.execute(statement)
    finally:
        await conn.close()

    async def read() -> None:
        await meta.readdir(ROOT_INO, -1, 10)
        await meta.file_map(file)

    with pytest.raises(errors.StorageError):
        await read()
    if "inode" in statement or "slice" in statement:
        # Whatever changes do to such rows, they end.
        with suppress(errors.WrkfsError):
            await meta.commit(Commit(file, (Objects().inline(2, b"ab"),), append=True))
        with suppress(errors.WrkfsError):
            await meta.setattr(file, SetAttr(size=1))
    with suppress(errors.WrkfsError):
        await meta.remove_tree(ROOT_INO, b"f")


async def test_a_cycle_of_directories_hangs_nothing(pg_volume: InPostgres) -> None:
    pg_volume.verify = False
    meta = await pg_volume.session()
    a = (await meta.mkdir(ROOT_INO, b"a", 0o755, ME)).ino
    b = (await meta.mkdir(a, b"b", 0o755, ME)).ino
    c = (await meta.mkdir(ROOT_INO, b"c", 0o755, ME)).ino
    await meta.mkdir(c, b"x", 0o755, ME)
    await pg_volume.rows("UPDATE inode SET parent = $1 WHERE ino = $2", b, a)
    await pg_volume.rows("UPDATE dentry SET parent = $1 WHERE ino = $2", b, a)
    with pytest.raises(errors.StorageError):
        await meta.rename(c, b"x", b, b"y")
    with pytest.raises(errors.StorageError):
        await meta.rename(c, b"x", b, b"a", RenameFlags.EXCHANGE)
    await meta.remove_tree(a, b"b")
    await meta.remove_tree(ROOT_INO, b"c")


async def test_dangling_and_forged_rows_give_errors(pg_volume: InPostgres) -> None:
    pg_volume.verify = False
    meta = await pg_volume.session()
    file = (await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=True))[0].attr.ino
    await meta.commit(Commit(file, (Objects().inline(0, b"x"),)))
    link = (await meta.symlink(ROOT_INO, b"l", b"t", ME)).ino
    await pg_volume.rows("DELETE FROM symlink")
    with pytest.raises(errors.StorageError):
        await meta.readlink(link)
    await pg_volume.rows("UPDATE dentry SET ino = 424242 WHERE name = 'f'")
    for call in (meta.lookup, meta.unlink, meta.remove_tree):
        with pytest.raises(errors.NotFound):
            await call(ROOT_INO, b"f")
    with pytest.raises(errors.StorageError):
        await meta.create(ROOT_INO, b"f", 0o600, ME, exclusive=False)
    await pg_volume.rows("UPDATE usage SET bytes = 9223372036854775807")
    with pytest.raises(errors.StorageError):
        await meta.statfs()
    await pg_volume.rows("UPDATE usage SET bytes = 0")
    await pg_volume.rows("UPDATE inode SET size = 9223372036854775807 WHERE ino = $1", file)
    with pytest.raises(errors.FileTooBig):
        await meta.commit(Commit(file, (Objects().inline(0, b"x"),), append=True))
    await pg_volume.rows("DELETE FROM inode WHERE ino = 1")
    with pytest.raises(errors.NotFound):
        await meta.readdir(ROOT_INO, 0, 10)


async def test_values_beyond_their_type_are_refused(pg_volume: InPostgres) -> None:
    meta = await pg_volume.session()
    with pytest.raises(errors.InvalidArgument):
        await meta.getattr(Ino(1 << 63))
    with pytest.raises(errors.InvalidArgument):
        await meta.setattr(ROOT_INO, SetAttr(atime_ns=1 << 63))
    await meta.mkdir(ROOT_INO, b"d", 0o755, ME)
