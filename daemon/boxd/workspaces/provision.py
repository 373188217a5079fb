"""Roles and schemas of volumes in the metadata database.

A volume is one login role and one schema of the same random name. The role owns nothing and may do
nothing but DML on its own tables; `wrkfs.meta.sql.migrate` writes the exact grants. What PUBLIC may
do in the database by default is taken away before the first role exists.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from boxd.errors import Unavailable
from boxd.model.usage import DriveUse
from boxd.secret import Secret
from wrkfs.meta.sql.migrate import (
    TRASH_SECONDS,
    MigrationError,
    create_volume_schema,
    install_functions,
    is_outdated,
    remove_functions,
    update_volume,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

from contextlib import asynccontextmanager, suppress

CONNECTION_LIMIT = 32
"""Connections that one volume's role can hold."""
CONNECT_TIMEOUT = 30.0
STATEMENT_TIMEOUT = 60.0
SCRAM_ITERATIONS = 4096
NAME = re.compile("v[0-9a-f]{32}")
"""Names of roles and schemas of volumes."""
DSN_PARAMETERS = frozenset(
    {
        "host",
        "port",
        "dbname",
        "database",
        "sslmode",
        "sslrootcert",
        "sslcrl",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "target_session_attrs",
    }
)
"""What of the superuser's DSN says where the database is; all else may be who comes and how."""
FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,  # the connection was lost between two statements
    asyncpg.InternalClientError,  # a goodbye of the server met a statement half-way
)
"""What asyncpg raises when the database is out, or refuses."""
_LOCK = 0x626F7864
"""Advisory lock that lets one at a time change the database's own rights."""

CLOSED_FUNCTIONS = (
    r"pg_advisory_.*|pg_try_advisory_.*|lo_.*|loread|lowrite|pg_sleep.*|pg_logical_emit_message"
    r"|pg_export_snapshot|pg_snapshot_.*|pg_current_snapshot|txid_snapshot_.*|txid_current_snapshot"
    r"|pg_read_.*|pg_ls_.*|pg_stat_file|pg_stat_get_.*|pg_stat_have_stats|pg_lock_status"
    r"|pg_blocking_pids|pg_safe_snapshot_blocking_pids|pg_isolation_test_session_is_blocked"
    r"|pg_cancel_backend|pg_terminate_backend|pg_notification_queue_usage|pg_listening_channels"
    r"|pg_prepared_xact|pg_cursor|pg_show_all_file_settings|pg_hba_file_rules|dblink.*"
)
"""Functions of the catalogue that PUBLIC may not call (a regular expression for the whole name)."""
CLOSED_VIEWS = r"pg_stat_.*|pg_statio_.*|pg_locks|pg_prepared_xacts|pg_cursors|pg_stats.*"
"""Views of the catalogue that PUBLIC may not read."""


class Provisioner:
    """Makes and removes volumes in one database. Stateless; calls may interleave.

    Each change is one transaction: it happens wholly or not at all.
    """

    def __init__(
        self,
        admin_dsn: str,
        *,
        trash_seconds: int = TRASH_SECONDS,
        bytes_limit: int | None = None,
        inodes_limit: int | None = None,
    ) -> None:
        """`admin_dsn` is a superuser's, of the metadata database.

        `trash_seconds`: so long removed files can be restored; `bytes_limit` and `inodes_limit`:
        the quota, None for none. All of it of each volume.
        """
        self._admin_dsn = admin_dsn
        self._trash_seconds = trash_seconds
        self._quota = bytes_limit, inodes_limit

    async def prepare(self, *, limits: bool = True) -> None:
        """Closes the database to PUBLIC, installs the drive's functions, updates all volumes.

        `limits` off: volumes keep the quota and the time of their trash that they have. Idempotent.
        Raises Unavailable when the database is out, its role may not do this or a
        volume is of a newer release.
        """
        async with self._connection() as connection:
            if not await connection.fetchval(
                "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
            ):
                raise Unavailable("the metadata database must be given with a superuser's DSN")
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                await self._close_to_public(connection)
            names = await _names(connection)
            if any([await is_outdated(connection, name) for name in names]):
                # All volumes in one transaction would need more locks than the server has.
                await remove_functions(connection)
            for name in names:
                await update_volume(connection, name, name)
                if limits:
                    await self._limit(connection, name)
            await install_functions(connection)

    async def create(self) -> tuple[str, Secret]:
        """A new role with its schema; role name (the schema has the same) and password.

        Raises Unavailable; then nothing was made.
        """
        name = f"v{secrets.token_hex(16)}"
        password = Secret(secrets.token_hex(32))
        async with self._connection() as connection, connection.transaction():
            # The rights of the database are one row, which two cannot change at once.
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(
                f"CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION "
                f"NOBYPASSRLS NOINHERIT CONNECTION LIMIT {CONNECTION_LIMIT} "
                f"PASSWORD '{scram_verifier(password)}'"
            )
            database = await connection.fetchval("SELECT quote_ident(current_database())")
            await connection.execute(f"GRANT CONNECT ON DATABASE {database} TO {name}")
            bytes_limit, inodes_limit = self._quota
            await create_volume_schema(
                connection,
                name,
                name,
                bytes_limit=bytes_limit,
                inodes_limit=inodes_limit,
                trash_seconds=self._trash_seconds,
            )
        return name, password

    async def drop(self, name: str) -> None:
        """Removes a role, its schema and all its metadata; absent ones are no error.

        Its connections are ended. Raises Unavailable.
        """
        if not NAME.fullmatch(name):
            raise ValueError("not a volume's role")
        async with self._connection() as connection:
            if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", name):
                return
            await connection.execute(f"ALTER ROLE {name} NOLOGIN")
            await connection.fetch(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1",
                name,
            )
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                database = await connection.fetchval("SELECT quote_ident(current_database())")
                await connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
                await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM {name}")
                await connection.execute(f"DROP ROLE {name}")

    async def names(self) -> list[str]:
        """All roles of volumes in the database. Raises Unavailable."""
        async with self._connection() as connection:
            return await _names(connection)

    async def is_unused(self, name: str) -> bool:
        """Whether a volume has nothing but its root directory. Raises Unavailable."""
        if not NAME.fullmatch(name):
            raise ValueError("not a volume's schema")
        async with self._connection() as connection:
            query = f"SELECT count(*) FROM (SELECT 1 FROM {name}.inode LIMIT 2) AS found"  # noqa: S608 checked name
            return int(await connection.fetchval(query)) < 2

    async def is_empty(self, name: str) -> bool:
        """Whether no name stands in a volume, or there is no such schema. Raises Unavailable."""
        async with self._connection() as connection:
            if name not in await _names(connection):
                return True
            await connection.execute("SELECT set_config('search_path', $1, false)", name)
            return bool(await connection.fetchval("SELECT NOT EXISTS (SELECT 1 FROM dentry)"))

    async def usage(self, names: list[str]) -> dict[str, DriveUse]:
        """What each of these volumes holds; those that are not there, or are locked, are missing.

        Raises Unavailable.
        """
        found = {}
        async with self._connection() as connection:
            await connection.execute(_PATIENCE)
            there = set(await _names(connection))
            for name in names:
                if name not in there:
                    continue
                with suppress(*_BUSY):
                    await connection.execute("SELECT set_config('search_path', $1, false)", name)
                    (use,) = await connection.fetch("SELECT * FROM wrkfs.statfs()")
                    found[name] = DriveUse(
                        bytes=use["bytes_used"],
                        bytes_limit=use["bytes_limit"],
                        files=use["inodes_used"],
                        files_limit=use["inodes_limit"],
                    )
        return found

    async def wasteful(self, names: list[str]) -> list[str]:
        """Which of these volumes have no live session, and something that upkeep would free.

        Raises Unavailable.
        """
        found = []
        async with self._connection() as connection:
            await connection.execute(_PATIENCE)
            there = set(await _names(connection))
            for name in names:
                try:
                    if name in there and await connection.fetchval(_WASTEFUL.format(name)):
                        found.append(name)
                except _BUSY:
                    continue  # the next look will tell
        return found

    def dsn(self, role: str, password: Secret) -> str:
        """The connection string of a volume's role. Contains the password."""
        parts = urlsplit(self._admin_dsn)
        host = parts.netloc.rpartition("@")[2]
        netloc = f"{quote(role)}:{quote(password.reveal())}@{host}"
        place = [pair for pair in parse_qsl(parts.query) if pair[0] in DSN_PARAMETERS]
        query = urlencode(place, quote_via=quote)
        return urlunsplit((parts.scheme, netloc, parts.path, query, ""))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection of our own. Raises Unavailable, also for errors of the database within."""
        try:
            connection = await asyncpg.connect(
                self._admin_dsn, timeout=CONNECT_TIMEOUT, command_timeout=STATEMENT_TIMEOUT
            )
        except FAILURES as error:
            raise Unavailable(f"the metadata database: {_reason(error)}") from None
        try:
            yield connection
        except (*FAILURES, MigrationError) as error:
            raise Unavailable(f"the metadata database: {_reason(error)}") from error
        finally:
            with suppress(*FAILURES):
                await connection.close(timeout=CONNECT_TIMEOUT)

    async def _limit(self, connection: asyncpg.Connection, name: str) -> None:
        await connection.execute(
            f"UPDATE {name}.volume "  # noqa: S608 a name from the catalogue
            "SET trash_seconds = $1, bytes_limit = $2, inodes_limit = $3 WHERE "
            "(trash_seconds, bytes_limit, inodes_limit) IS DISTINCT FROM ($1, $2, $3)",
            self._trash_seconds,
            *self._quota,
        )

    async def _close_to_public(self, connection: asyncpg.Connection) -> None:
        database = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for kind, query in _OPEN_THINGS.items():
            names = [row[0] for row in await connection.fetch(query)]
            if names:
                await connection.execute(f"REVOKE ALL ON {kind} {', '.join(names)} FROM PUBLIC")


_PATIENCE = "SET lock_timeout = '1s'; SET statement_timeout = '5s'"
"""A role can lock the tables of its volume: that keeps nobody else waiting."""
_BUSY = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.UndefinedTableError)
"""What is raised of a volume that is locked, or is being removed."""
_WASTEFUL = """
    SELECT NOT EXISTS (SELECT 1 FROM {0}.session s
                       WHERE s.fenced_at IS NULL AND s.expires_at > clock_timestamp())
        AND (EXISTS (SELECT 1 FROM {0}.deleted)
             OR EXISTS (SELECT 1 FROM {0}.slice_range)
             OR EXISTS (SELECT 1 FROM {0}.trash t, {0}.volume v WHERE t.deleted_at
                 < clock_timestamp() - make_interval(secs => least(v.trash_seconds, 1000000000))))
"""
"""Whether a volume that nobody has open keeps garbage, ids of ended sessions, or old trash."""


async def _names(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT nspname FROM pg_namespace WHERE nspname ~ '^v[0-9a-f]{32}$'"
    )
    return [row["nspname"] for row in rows]


_OPEN_THINGS = {
    "LANGUAGE": """
        SELECT quote_ident(lanname) FROM pg_language
        WHERE lanpltrusted AND has_language_privilege('public', oid, 'USAGE')""",
    "FUNCTION": f"""
        SELECT oid::regprocedure::text FROM pg_proc
        WHERE proname ~ '^({CLOSED_FUNCTIONS})$' AND prokind IN ('f', 'w')
          AND has_function_privilege('public', oid, 'EXECUTE')""",  # noqa: S608 a constant
    "TABLE": f"""
        SELECT oid::regclass::text FROM pg_class
        WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('v', 'r')
          AND relname ~ '^({CLOSED_VIEWS})$' AND has_table_privilege('public', oid, 'SELECT')""",  # noqa: S608 a constant
}
"""What PUBLIC still may: kind of GRANT, query for the names."""


def scram_verifier(password: Secret) -> str:
    """The stored form of a password, so that the database never sees the password itself."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.reveal().encode("ascii"), salt, SCRAM_ITERATIONS
    )
    client = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    text = [base64.b64encode(part).decode("ascii") for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${SCRAM_ITERATIONS}:{text[0]}${text[1]}:{text[2]}"


def _reason(error: Exception) -> str:
    """What happened, without values: messages of the database may quote them."""
    if isinstance(error, asyncpg.PostgresError):
        return f"{type(error).__name__} ({error.sqlstate})"
    return type(error).__name__ if not str(error) else str(error)
