"""An attacker with one volume's DSN reaches nothing of another volume, and little of the server."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.store.postgres.store import PostgresStore
from boxd.workspaces.provision import CONNECTION_LIMIT, Provisioner
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.secret import Secret

CANARY = "canary-file-name-7f3a"
EXPECTED_PUBLIC_FUNCTIONS = ("pg_notify",)
STATEMENTS = [
    "SET ROLE {victim}",
    "SET ROLE boxd",
    "SET SESSION AUTHORIZATION {victim}",
    "GRANT {victim} TO {attacker}",
    "GRANT USAGE ON SCHEMA {victim} TO {attacker}",
    "ALTER ROLE {attacker} SUPERUSER",
    "ALTER ROLE {attacker} CONNECTION LIMIT -1",
    "ALTER ROLE {victim} PASSWORD 'x'",
    "CREATE ROLE another",
    "CREATE DATABASE another",
    "CREATE SCHEMA another",
    "CREATE TABLE {attacker}.t (n int)",
    "CREATE TABLE public.t (n int)",
    "CREATE TEMP TABLE t (n int)",
    "CREATE FUNCTION {attacker}.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION pg_trgm",
    "CREATE VIEW {attacker}.v AS SELECT 1",
    "CREATE TYPE {attacker}.t AS ENUM ('a')",
    "CREATE SERVER s FOREIGN DATA WRAPPER w",
    "CREATE TRIGGER t AFTER INSERT ON {attacker}.inode EXECUTE FUNCTION f()",
    "CREATE RULE r AS ON INSERT TO {attacker}.inode DO NOTHING",
    "ALTER TABLE {attacker}.inode DISABLE TRIGGER ALL",
    "ALTER TABLE {attacker}.inode ENABLE ROW LEVEL SECURITY",
    "TRUNCATE {attacker}.inode",
    "DROP TABLE {attacker}.inode",
    "DROP SCHEMA {attacker} CASCADE",
    "ALTER SCHEMA wrkfs RENAME TO w",
    "COMMENT ON TABLE {attacker}.inode IS 'x'",
    "DO $$ BEGIN PERFORM 1; END $$",
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "COPY (SELECT 1) TO '/tmp/x'",
    "COPY {attacker}.inode FROM '/etc/passwd'",
    "ALTER SYSTEM SET fsync = off",
    "SET temp_file_limit = -1",
    "SET log_statement = 'all'",
    "SET session_replication_role = replica",
    "SET zero_damaged_pages = on",
    "CHECKPOINT",
    "LOAD 'auto_explain'",
    "SECURITY LABEL ON ROLE {attacker} IS 'x'",
    "IMPORT FOREIGN SCHEMA s FROM SERVER s INTO s",
    "CREATE PUBLICATION p FOR ALL TABLES",
    "CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p",
    "CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION f()",
    "CREATE TABLESPACE t LOCATION '/tmp'",
    "REASSIGN OWNED BY {victim} TO {attacker}",
    "SELECT * FROM pg_authid",
    "SELECT * FROM pg_shadow",
    "SELECT * FROM pg_user_mapping",
    "SELECT * FROM pg_largeobject",
    "SELECT * FROM pg_stat_activity",
    "SELECT * FROM pg_stats",
    "SELECT * FROM pg_locks",
    "SELECT * FROM pg_stat_user_tables",
    "SELECT * FROM pg_hba_file_rules",
    "SELECT * FROM pg_file_settings",
    "SELECT pg_sleep(0)",
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_try_advisory_lock(1)",
    "SELECT lo_create(0)",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('PG_VERSION')",
    "SELECT pg_ls_dir('.')",
    "SELECT pg_stat_file('PG_VERSION')",
    "SELECT pg_logical_emit_message(false, 'a', 'b')",
    "SELECT pg_export_snapshot()",
    "SELECT pg_terminate_backend(1)",
    "SELECT pg_cancel_backend(1)",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT pg_switch_wal()",
    "SELECT pg_stat_reset()",
    "SELECT pg_stat_get_activity(NULL)",
    "SELECT pg_promote()",
    "SELECT pg_create_restore_point('x')",
    "SELECT pg_current_logfile()",
    "SELECT * FROM {victim}.inode",
]
"""What the attacker tries; every one is refused."""
REFUSED = (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError)


@dataclass(frozen=True, slots=True)
class Side:
    """One volume: name of role and schema, password, DSN."""

    name: str
    password: Secret
    dsn: str


@dataclass(frozen=True, slots=True)
class Sides:
    """The attacker's session, both volumes, and the administrator's DSN."""

    attack: asyncpg.Connection
    attacker: Side
    victim: Side
    admin_dsn: str


@pytest.fixture
async def sides(pg_database: str) -> AsyncIterator[Sides]:
    store = PostgresStore(pg_database)
    await store.start()
    provisioner = Provisioner(pg_database)
    await provisioner.prepare()
    await provisioner.prepare()
    made = []
    for _ in range(2):
        name, password = await provisioner.create()
        made.append(Side(name, password, provisioner.dsn(name, password)))
    await leave_a_file(made[1])
    attack = await asyncpg.connect(made[0].dsn)
    try:
        yield Sides(attack, made[0], made[1], pg_database)
    finally:
        await attack.close()
        await store.close()
        for side in made:
            await provisioner.drop(side.name)


async def leave_a_file(side: Side) -> None:
    """The victim has a directory with a recognisable name."""
    store = StoreConfig("http://127.0.0.1:9", "b", "p", "r", "a", "s")
    meta = PostgresMeta(VolumeConfig("victim", side.name, side.dsn, store))
    await meta.start()
    await meta.mkdir(ROOT_INO, CANARY.encode(), 0o755, Caller(0, 0))
    await meta.close()


async def relations(connection: asyncpg.Connection, own: str) -> list[str]:
    """Every relation outside of the catalogue and the attacker's own schema."""
    rows = await connection.fetch(
        "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'v', 'S', 'm', 'p') AND n.nspname NOT IN ($1, 'pg_catalog', "
        "'information_schema') AND n.nspname !~ '^pg_toast'",
        own,
    )
    return [row[0] for row in rows]


@pytest.mark.promise("S1")
async def test_every_foreign_relation_is_closed(sides: Sides) -> None:
    found = await relations(sides.attack, sides.attacker.name)
    assert sum(name.startswith(sides.victim.name) for name in found) > 10
    assert any(name.startswith("boxd.") for name in found)
    for name in found:
        for form in (
            "SELECT * FROM {0}",
            "SELECT count(*) FROM {0}",
            "INSERT INTO {0} DEFAULT VALUES",
            "DELETE FROM {0}",
            "TRUNCATE {0}",
            "LOCK TABLE {0}",
            "COPY {0} TO STDOUT",
            "CREATE INDEX ON {0} ((1))",
            "ALTER TABLE {0} RENAME TO stolen",
            "DROP TABLE {0}",
            "GRANT ALL ON {0} TO {1}",
        ):
            statement = form.format(name, sides.attacker.name)
            with pytest.raises(asyncpg.PostgresError) as refused:
                async with sides.attack.transaction():
                    await sides.attack.execute(statement)
            assert refused.value.sqlstate in ("42501", "42809"), statement


@pytest.mark.promise("S1")
async def test_statements_are_refused(sides: Sides) -> None:
    # Insufficient privilege; or the object cannot even be named; or the server has it off.
    wanted = {"42501", "42704", "42710", "42883", "55000", "0A000", "22023"}
    allowed: list[str] = []
    for statement in STATEMENTS:
        text = statement.format(victim=sides.victim.name, attacker=sides.attacker.name)
        try:
            await sides.attack.execute(text)
        except asyncpg.PostgresError as error:
            if error.sqlstate in wanted:
                continue
        allowed.append(text)
    assert allowed == []
    assert await sides.attack.fetchval("SELECT current_setting('max_prepared_transactions')") == "0"


@pytest.mark.promise("S1")
async def test_another_search_path_wins_nothing(sides: Sides) -> None:
    await sides.attack.execute(f"SET search_path = {sides.victim.name}")
    functions = await sides.attack.fetch(
        "SELECT p.oid::regprocedure::text AS name, p.prosecdef, p.proconfig FROM pg_proc p "
        "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'wrkfs'"
    )
    assert len(functions) > 10
    # It reads no table, and tells what pg_xact_status tells everybody.
    definers = {row["name"]: row["proconfig"] for row in functions if row["prosecdef"]}
    assert definers == {"wrkfs.has_ended(xid)": ["search_path=pg_catalog, pg_temp"]}
    for table in ("inode", "dentry", "session", "volume"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await sides.attack.fetch(f"SELECT * FROM {table}")  # noqa: S608 a constant
        assert refused.value.sqlstate in ("42501", "42P01")


async def test_grants_are_the_reviewed_ones(sides: Sides) -> None:
    role = await sides.attack.fetchrow(
        "SELECT rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, "
        "rolbypassrls, rolconnlimit FROM pg_roles WHERE rolname = current_user"
    )
    assert role is not None
    assert tuple(role) == (False, False, False, False, True, False, False, CONNECTION_LIMIT)
    connection = await asyncpg.connect(sides.admin_dsn)
    try:
        name = sides.attacker.name
        memberships = "SELECT count(*) FROM pg_auth_members WHERE member = $1::regrole"
        assert await connection.fetchval(memberships, name) == 0
        owned = "SELECT count(*) FROM pg_class WHERE relowner = $1::regrole"
        assert await connection.fetchval(owned, name) == 0
        rights = "SELECT array_agg(r ORDER BY r) FROM unnest($2::text[]) AS r WHERE "
        assert await connection.fetchval(
            rights + "has_database_privilege($1, current_database(), r)",
            name,
            ["CONNECT", "CREATE", "TEMP"],
        ) == ["CONNECT"]
        for schema, wanted in (
            (name, ["USAGE"]),
            ("wrkfs", ["USAGE"]),
            ("public", None),
            ("boxd", None),
            (sides.victim.name, None),
        ):
            query = rights + "has_schema_privilege($1, $3, r)"
            found = await connection.fetchval(query, name, ["USAGE", "CREATE"], schema)
            assert found == wanted, schema
        query = "SELECT lanname FROM pg_language WHERE lanpltrusted "
        query += "AND has_language_privilege($1, oid, 'USAGE')"
        assert await connection.fetch(query, name) == []
    finally:
        await connection.close()


async def test_functions_open_to_public_do_no_input_or_output(sides: Sides) -> None:
    rows = await sides.attack.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace "
        "AND has_function_privilege(current_user, oid, 'EXECUTE') AND proname ~ "
        "'advisory|^lo_|sleep|emit_message|export_snapshot|read_file|ls_dir|stat_file|dblink"
        "|stat_get|terminate|cancel_backend|notify|wal|reload|promote|reset|logfile_rotate'"
    )
    # Functions that only read the position or size of something stand here by name.
    harmless = {
        "pg_current_wal_flush_lsn",
        "pg_current_wal_insert_lsn",
        "pg_current_wal_lsn",
        "pg_get_wal_replay_pause_state",
        "pg_get_wal_resource_managers",
        "pg_is_wal_replay_paused",
        "pg_last_wal_receive_lsn",
        "pg_last_wal_replay_lsn",
        "pg_wal_lsn_diff",
        "pg_walfile_name",
        "pg_walfile_name_offset",
        "pg_split_walfile_name",
    }
    assert {row["proname"] for row in rows} - harmless == set(EXPECTED_PUBLIC_FUNCTIONS)


async def test_the_catalogue_tells_nothing(sides: Sides) -> None:
    columns = await sides.attack.fetch(
        "SELECT format('%I.%I', table_schema, table_name) AS name FROM information_schema.tables "
        "WHERE table_schema IN ('pg_catalog', 'information_schema')"
    )
    readable = 0
    for row in columns:
        with contextlib.suppress(*REFUSED):
            query = f"SELECT count(*) FROM {row['name']} AS t WHERE t::text LIKE $1"  # noqa: S608 from the catalogue
            assert await sides.attack.fetchval(query, f"%{CANARY}%") == 0, row["name"]
            readable += 1
    assert readable > 100


async def test_passwords_and_databases_are_pinned(sides: Sides) -> None:
    swapped = sides.attacker.dsn.replace(sides.attacker.name, sides.victim.name, 1)
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(swapped)
    for database in ("postgres", "template1"):
        base, _, rest = sides.attacker.dsn.rpartition("?")
        with pytest.raises(
            (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidAuthorizationSpecificationError)
        ):
            await asyncpg.connect(f"{base.rpartition('/')[0]}/{database}?{rest}")


async def test_all_slots_held_leave_others_in(sides: Sides) -> None:
    held = [sides.attack]
    try:
        while len(held) < CONNECTION_LIMIT:
            held.append(await asyncpg.connect(sides.attacker.dsn))
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(sides.attacker.dsn)
        other = await asyncpg.connect(sides.victim.dsn)
        assert await other.fetchval("SELECT count(*) FROM dentry") == 1
        await other.close()
    finally:
        await asyncio.gather(*(connection.close() for connection in held[1:]))


async def test_locks_in_bulk_leave_others_alone(sides: Sides) -> None:
    async with sides.attack.transaction():
        for table in await sides.attack.fetch(
            "SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r'",
            sides.attacker.name,
        ):
            with contextlib.suppress(*REFUSED):
                async with sides.attack.transaction():
                    await sides.attack.execute(f"LOCK TABLE {table['relname']} IN ROW SHARE MODE")
        other = await asyncpg.connect(sides.victim.dsn)
        assert await other.fetchval("SELECT count(*) FROM inode") == 2
        await other.close()


async def test_temporary_files_are_bounded(sides: Sides) -> None:
    limit = await sides.attack.fetchval("SELECT current_setting('temp_file_limit')")
    assert limit == "1GB"
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await sides.attack.execute("SET temp_file_limit = '2GB'")
