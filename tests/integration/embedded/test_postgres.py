"""The embedded PostgreSQL: real clusters, real kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psutil
import pytest

from boxd.embedded.postgres import EmbeddedPostgres
from boxd.embedded.postgres_cluster import SOCKET_NAME, SOCKET_PATH_MAX, account
from boxd.embedded.postgres_settings import SETTINGS, SUPERUSER, host_based_access
from boxd.embedded.process import processes_in, user_of
from boxd.errors import Unavailable
from boxd.sandbox.id_claims import FIRST
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

OWN_USER = FIRST - 1
"""The last id of the users of services."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place whose parent is closed to the server's user, like the state directory."""
    with tempfile.TemporaryDirectory(prefix="boxd-") as name:
        Path(name).chmod(0o700)
        yield Path(name) / "postgres"


@pytest.fixture
async def server(directory: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(directory)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


async def test_settings_hba_and_checksums_read_back(server: EmbeddedPostgres) -> None:
    connection = await asyncpg.connect(server.dsn())
    try:
        rows = await connection.fetch("SELECT name, setting, applied FROM pg_file_settings")
        assert {row["name"] for row in rows} == set(SETTINGS)
        assert all(row["applied"] for row in rows)
        for name, wanted in (("fsync", "on"), ("data_checksums", "on"), ("log_statement", "none")):
            assert await connection.fetchval("SELECT current_setting($1)", name) == wanted
        query = "SELECT type, database, user_name, auth_method FROM pg_hba_file_rules"
        rules = [tuple(row) for row in await connection.fetch(query)]
        assert rules == [
            ("local", ["boxd"], ["all"], "scram-sha-256"),
            ("local", ["all"], [SUPERUSER], "scram-sha-256"),
            ("local", ["all"], ["all"], "reject"),
        ]
        assert "trust" not in host_based_access()
        assert await connection.fetchval("SELECT current_setting('server_encoding')") == "UTF8"
    finally:
        await connection.close()


async def test_no_tcp_and_private_files(server: EmbeddedPostgres, directory: Path) -> None:
    assert server.pid is not None
    sockets = set()
    for entry in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of a connection that has just ended
            sockets.add(os.readlink(entry))
    listening = Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{line.split()[9]}]" for line in listening}
    assert not sockets & inodes
    for path, mode in (
        (directory, 0o700),
        (directory / "data", 0o700),
        (directory / "socket", 0o711),
        (directory / "password", 0o600),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert (directory / "data").stat().st_uid != 0
    password = (directory / "password").read_bytes()
    looked_at = set()
    for pid in processes_in(server.data, "postgres"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            assert password not in Path(f"/proc/{pid}/environ").read_bytes()
            assert password not in Path(f"/proc/{pid}/cmdline").read_bytes()
            looked_at.add(pid)
    assert server.pid in looked_at


async def test_wrong_password_is_refused(server: EmbeddedPostgres) -> None:
    password = server.dsn().split(":")[2].split("@")[0]
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.dsn().replace(password, "0" * 64))
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await asyncpg.connect(server.dsn("postgres").replace(f"//{SUPERUSER}:", "//nobody:"))


async def test_a_killed_server_is_started_again_and_keeps_what_it_acknowledged(
    directory: Path,
) -> None:
    lines: list[str] = []
    server = EmbeddedPostgres(directory, on_crash=lines.append)
    try:
        dsn = await server.start()
        first = server.pid
        assert first is not None
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE kept (n int)")
        await connection.execute("INSERT INTO kept VALUES (7)")
        os.kill(first, signal.SIGKILL)
        await until(lambda: server.pid not in (first, None))
        connection.terminate()
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT n FROM kept") == 7
        await connection.close()
        assert lines == ["PostgreSQL ended (SIGKILL); starting it again"]
    finally:
        await server.stop()


async def test_a_running_server_is_adopted_watched_and_stopped(directory: Path) -> None:
    lines: list[str] = []
    first = EmbeddedPostgres(directory)
    second = EmbeddedPostgres(directory, on_crash=lines.append)
    try:
        await first.start()
        pid = first.pid
        assert pid is not None
        await first.detach()
        await second.start()
        assert second.pid == pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: second.pid not in (pid, None))
        assert len(lines) == 1
        await second.detach()
    finally:
        await EmbeddedPostgres(directory).stop()
    assert processes_in(directory / "data", "postgres") == []
    assert not (directory / "data" / "postmaster.pid").exists()


async def test_a_number_that_another_process_got_keeps_no_server_down(directory: Path) -> None:
    """As after the host went down: what a dead server left names a pid that lives again."""
    server = EmbeddedPostgres(directory)
    await server.start()
    await server.stop()
    user = account()
    other = await asyncio.create_subprocess_exec("sleep", "600", user=user.pw_uid)
    try:
        for left in (
            directory / "data" / "postmaster.pid",
            directory / "socket" / f"{SOCKET_NAME}.lock",
        ):
            left.write_text(f"{other.pid}\n{directory / 'data'}\n0\n5432\n\n\n0 0\nready\n")
            os.chown(left, user.pw_uid, user.pw_gid)
        await server.start()
        assert server.pid != other.pid
    finally:
        other.kill()
        await other.wait()
        await server.stop()


async def test_an_own_user_gets_the_files_of_the_account(directory: Path) -> None:
    """As after an upgrade: a server of the release before still runs, as another user."""
    before = EmbeddedPostgres(directory)
    await before.start()
    old = before.pid
    await before.detach()
    server = EmbeddedPostgres(directory, user=OWN_USER)
    try:
        connection = await asyncpg.connect(await server.start())
        await connection.close()
        assert server.pid is not None
        assert server.pid != old
        assert user_of(server.pid) == OWN_USER
        assert {path.lstat().st_uid for path in server.data.rglob("*")} == {OWN_USER}
    finally:
        await server.stop()
    beside = EmbeddedPostgres(directory)
    await beside.start()
    try:
        assert beside.pid is not None
        assert user_of(beside.pid) == OWN_USER, "a command beside the service keeps the owner"
    finally:
        await beside.stop()


async def test_files_that_a_taken_over_server_planted_lead_nowhere(
    directory: Path, tmp_path: Path
) -> None:
    server = EmbeddedPostgres(directory)
    await server.start()
    await server.stop()
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o600)
    socket = directory / "socket" / ".s.PGSQL.1"
    socket.symlink_to(secret)
    (server.data / "postgresql.conf").unlink()
    (server.data / "postgresql.conf").symlink_to("/dev/zero")
    os.mkfifo(server.data / "pg_hba.conf.new")
    (server.data / "pg_hba.conf.new").replace(server.data / "pg_hba.conf")
    try:
        await server.start()
        assert secret.stat().st_mode & 0o777 == 0o600
        for name in ("postgresql.conf", "pg_hba.conf"):
            assert stat.S_ISREG((server.data / name).lstat().st_mode)
    finally:
        await server.stop()
        socket.unlink()


async def test_a_version_that_is_none(server: EmbeddedPostgres) -> None:
    await server.stop()
    version = server.data / "PG_VERSION"
    for content in (b"../../../tmp", b"1" * 10_000, b"\xff"):
        version.write_bytes(content)
        with pytest.raises(Unavailable, match="PG_VERSION"):
            await server.start()
    version.unlink()
    version.symlink_to("/dev/zero")
    with pytest.raises(Unavailable, match="PG_VERSION"):
        await server.start()
    version.unlink()


async def test_processes_of_other_pid_namespaces_are_not_the_server(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """A box chooses the names of its programs and directories."""
    program = tmp_path / "postgres"
    shutil.copy("/bin/sleep", program)
    before = set(processes_in(server.data, "postgres"))
    command = ("unshare", "--pid", "--fork", "--kill-child", str(program), "600")
    other = await asyncio.create_subprocess_exec(*command, cwd=server.data)
    try:
        children = psutil.Process(other.pid).children
        await until(lambda: [child.exe() for child in children()] == [str(program)])
        assert set(processes_in(server.data, "postgres")) == before
    finally:
        other.kill()
        await other.wait()


async def test_a_deep_state_directory_gets_a_short_socket_path(directory: Path) -> None:
    deep = directory / ("x" * 100) / "postgres"
    server = EmbeddedPostgres(deep)
    try:
        dsn = await server.start()
        assert server.note is not None
        assert str(deep) in server.note
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        link = Path(server.note.rpartition(" ")[2])
        assert link.resolve() == deep / "socket"
        assert len(str(link / ".s.PGSQL.5432")) <= SOCKET_PATH_MAX
    finally:
        await server.stop()
    assert not link.is_symlink()


async def test_an_interrupted_initdb_is_repeated(directory: Path) -> None:
    (directory / "data.new" / "base").mkdir(parents=True)
    (directory / "data.new" / "PG_VERSION").write_text("15")
    server = EmbeddedPostgres(directory)
    try:
        connection = await asyncpg.connect(await server.start())
        await connection.close()
    finally:
        await server.stop()


async def test_a_broken_cluster_says_what_is_wrong(server: EmbeddedPostgres) -> None:
    await server.stop()
    (server.data / "global" / "pg_control").unlink()
    with pytest.raises(Unavailable, match="pg_control"):
        await server.start()


async def test_missing_programs_name_the_package(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="apt-get install postgresql"):
        await EmbeddedPostgres(directory, distribution=tmp_path).start()
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "PG_VERSION").write_text("9\n")
    (directory / "data" / "postgresql.conf").touch()
    (directory / "data" / "pg_hba.conf").touch()
    (directory / "password").touch()
    with pytest.raises(Unavailable, match="apt-get install postgresql-9"):
        await EmbeddedPostgres(directory, distribution=tmp_path).start()


async def test_fresh_databases(pg_database: str, pg: str) -> None:
    assert pg_database != pg
    connection = await asyncpg.connect(pg_database)
    assert await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname='wrkfs'") == 0
    await connection.close()
