"""Roles and schemas of volumes in the metadata database.

A volume has a login role and a schema with the same random name. The role owns nothing, and may
only use DML on its own tables; `wrkfs.meta.sql.migrate` contains the exact grants. The default
privileges of PUBLIC in the database are revoked before the first role exists.
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
"""Maximum number of connections of a volume's role."""
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
"""Parameters of the superuser's DSN that locate the database. Others may contain credentials."""
FAILURES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,  # the connection was lost between two statements
    asyncpg.InternalClientError,  # the server shut down during a statement
)
"""The errors of asyncpg if the database is down or rejects a statement."""
_LOCK = 0x626F7864
"""Advisory lock that serialises changes of the privileges of the database."""

CLOSED_FUNCTIONS = (
    r"pg_advisory_.*|pg_try_advisory_.*|lo_.*|loread|lowrite|pg_sleep.*|pg_logical_emit_message"
    r"|pg_export_snapshot|pg_snapshot_.*|pg_current_snapshot|txid_snapshot_.*|txid_current_snapshot"
    r"|pg_read_.*|pg_ls_.*|pg_stat_file|pg_stat_get_.*|pg_stat_have_stats|pg_lock_status"
    r"|pg_blocking_pids|pg_safe_snapshot_blocking_pids|pg_isolation_test_session_is_blocked"
    r"|pg_cancel_backend|pg_terminate_backend|pg_notification_queue_usage|pg_listening_channels"
    r"|pg_prepared_xact|pg_cursor|pg_show_all_file_settings|pg_hba_file_rules|dblink.*"
)
"""Functions of the catalog that PUBLIC may not call (a regular expression for the whole name)."""
CLOSED_VIEWS = r"pg_stat_.*|pg_statio_.*|pg_locks|pg_prepared_xacts|pg_cursors|pg_stats.*"
"""Views of the catalog that PUBLIC may not read."""


class Provisioner:
    """Creates and removes volumes in one database. Stateless; calls may interleave.

    Each change is one transaction.
    """

    def __init__(
        self,
        admin_dsn: str,
        *,
        trash_seconds: int = TRASH_SECONDS,
        bytes_limit: int | None = None,
        inodes_limit: int | None = None,
    ) -> None:
        """`admin_dsn` is the DSN of a superuser of the metadata database.

        In each volume, removed files can be restored for `trash_seconds`. `bytes_limit` and
        `inodes_limit` are the quota of each volume; None: no quota.
        """
        self._admin_dsn = admin_dsn
        self._trash_seconds = trash_seconds
        self._quota = bytes_limit, inodes_limit

    async def prepare(self, *, limits: bool = True) -> None:
        """Close the database to PUBLIC, install the drive's functions, and update all volumes.

        Without `limits`, existing volumes keep their quota and trash time. Idempotent. Raises
        Unavailable if the database is down, the role lacks a privilege, or a volume comes from a
        newer release.
        """
        async with self._connection() as connection:
            if not await connection.fetchval(
                "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
            ):
                raise Unavailable(
                    "the DSN of the metadata database is not a superuser's: give one in "
                    "--meta-dsn-file"
                )
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
        """Create a role and its schema; return their common name and the password.

        Raises Unavailable; then nothing was created.
        """
        name = f"v{secrets.token_hex(16)}"
        password = Secret(secrets.token_hex(32))
        async with self._connection() as connection, connection.transaction():
            # The privileges of the database are in one row, and concurrent changes of this row
            # fail.
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
        """End the connections of a role, and remove it with its schema and all metadata.

        A missing role is not an error. Raises Unavailable.
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
        """Return all roles of volumes in the database. Raises Unavailable."""
        async with self._connection() as connection:
            return await _names(connection)

    async def is_unused(self, name: str) -> bool:
        """Return whether a volume has only its root directory. Raises Unavailable."""
        if not NAME.fullmatch(name):
            raise ValueError("not a volume's schema")
        async with self._connection() as connection:
            query = f"SELECT count(*) FROM (SELECT 1 FROM {name}.inode LIMIT 2) AS sample"  # noqa: S608 checked name
            return int(await connection.fetchval(query)) < 2

    async def is_empty(self, name: str) -> bool:
        """Return whether a volume has no names, or does not exist. Raises Unavailable."""
        async with self._connection() as connection:
            if name not in await _names(connection):
                return True
            await connection.execute("SELECT set_config('search_path', $1, false)", name)
            return bool(await connection.fetchval("SELECT NOT EXISTS (SELECT 1 FROM dentry)"))

    async def usage(self, names: list[str]) -> dict[str, DriveUse]:
        """Return the use of these volumes, without missing and locked ones. Raises Unavailable."""
        uses = {}
        async with self._connection() as connection:
            await connection.execute(_SHORT_TIMEOUTS)
            existing = set(await _names(connection))
            for name in names:
                if name not in existing:
                    continue
                with suppress(*_BUSY):
                    await connection.execute("SELECT set_config('search_path', $1, false)", name)
                    (use,) = await connection.fetch("SELECT * FROM wrkfs.statfs()")
                    uses[name] = DriveUse(
                        bytes=use["bytes_used"],
                        bytes_limit=use["bytes_limit"],
                        files=use["inodes_used"],
                        files_limit=use["inodes_limit"],
                    )
        return uses

    async def wasteful(self, names: list[str]) -> list[str]:
        """Return which of the volumes have data to free and no live session.

        Raises Unavailable.
        """
        wasteful = []
        async with self._connection() as connection:
            await connection.execute(_SHORT_TIMEOUTS)
            existing = set(await _names(connection))
            for name in names:
                try:
                    if name in existing and await connection.fetchval(_WASTEFUL.format(name)):
                        wasteful.append(name)
                except _BUSY:
                    continue  # the next round tries again
        return wasteful

    def dsn(self, role: str, password: Secret) -> str:
        """Return the connection string of a volume's role, with the password."""
        parts = urlsplit(self._admin_dsn)
        host = parts.netloc.rpartition("@")[2]
        netloc = f"{quote(role)}:{quote(password.reveal())}@{host}"
        location = [pair for pair in parse_qsl(parts.query) if pair[0] in DSN_PARAMETERS]
        query = urlencode(location, quote_via=quote)
        return urlunsplit((parts.scheme, netloc, parts.path, query, ""))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Yield a connection. Errors of the database in the body become Unavailable, too."""
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
            f"UPDATE {name}.volume "  # noqa: S608 a name from the catalog
            "SET trash_seconds = $1, bytes_limit = $2, inodes_limit = $3 WHERE "
            "(trash_seconds, bytes_limit, inodes_limit) IS DISTINCT FROM ($1, $2, $3)",
            self._trash_seconds,
            *self._quota,
        )

    async def _close_to_public(self, connection: asyncpg.Connection) -> None:
        database = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for kind, query in _PUBLIC_OBJECTS.items():
            names = [row[0] for row in await connection.fetch(query)]
            if names:
                await connection.execute(f"REVOKE ALL ON {kind} {', '.join(names)} FROM PUBLIC")


_SHORT_TIMEOUTS = "SET lock_timeout = '1s'; SET statement_timeout = '5s'"
"""A role can lock the tables of its volume. This must not delay the other volumes."""
_BUSY = (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.UndefinedTableError)
"""The errors of a volume that is locked or being removed."""
_WASTEFUL = """
    SELECT NOT EXISTS (SELECT 1 FROM {0}.session s
                       WHERE s.fenced_at IS NULL AND s.expires_at > clock_timestamp())
        AND (EXISTS (SELECT 1 FROM {0}.deleted)
             OR EXISTS (SELECT 1 FROM {0}.slice_range)
             OR EXISTS (SELECT 1 FROM {0}.trash t, {0}.volume v WHERE t.deleted_at
                 < clock_timestamp() - make_interval(secs => least(v.trash_seconds, 1000000000))))
"""
"""Whether a volume without a session has garbage, ids of ended sessions, or expired trash."""


async def _names(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT nspname FROM pg_namespace WHERE nspname ~ '^v[0-9a-f]{32}$'"
    )
    return [row["nspname"] for row in rows]


_PUBLIC_OBJECTS = {
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
"""Queries for the objects that PUBLIC can still use, by the object type of REVOKE."""


def scram_verifier(password: Secret) -> str:
    """Return the stored form of a password, so that the database never sees the password."""
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
    """Return the reason without values, which messages of the database may quote."""
    if isinstance(error, asyncpg.PostgresError):
        return f"{type(error).__name__} ({error.sqlstate})"
    return type(error).__name__ if not str(error) else str(error)
