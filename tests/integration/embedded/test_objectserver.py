"""The object server's process: start, adoption, restart, kills under load, a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from boxd.embedded.objectstore import EmbeddedObjectServer, ObjectEndpoint
from boxd.errors import Unavailable
from objectserver.__main__ import assemble
from objectserver.config import ServerConfig
from objectserver.files import ObjectFiles, Spool
from objectserver.keys import Credential, KeyTable
from objectserver.secret import Secret
from tests.harness.servers.s3raw import send
from tests.harness.wait import until
from wrkfs.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from objectserver.files import ObjectInfo
    from tests.plugins.strict_logs import AssertLogs

MIB = 1024 * 1024
USER = 981_000_000 + os.getpid()
"""Id of the user of the server. Another process of the tests has another: a start of the server
ends all processes of its user."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="boxd-objects-") as name:
        yield Path(name) / "objects"


@pytest.fixture
async def server(directory: Path) -> AsyncIterator[EmbeddedObjectServer]:
    server = EmbeddedObjectServer(directory, user=USER)
    try:
        yield server
    finally:
        await server.stop()


async def volume(server: EmbeddedObjectServer, endpoint: ObjectEndpoint) -> StoreConfig:
    access_key, secret = await server.issue("vol")
    return StoreConfig(
        endpoint.url, endpoint.bucket, "vol", endpoint.region, access_key, secret.reveal()
    )


def client(store: StoreConfig) -> S3Store:
    return S3Store(
        store.bucket,
        endpoint=store.endpoint,
        region=store.region,
        access_key_id=store.access_key,
        secret_access_key=store.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "10s"},
        retry_config={"max_retries": 0},
    )


async def test_files_are_private_and_no_secret_is_shown(
    server: EmbeddedObjectServer, directory: Path
) -> None:
    endpoint = await server.start()
    store = await volume(server, endpoint)
    own = [f"server/{name}" for name in ("keys.json", "admin", "lock", "state.json")]
    for name in ("admin.key", "config.json", "log", *own):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600, name
    for name in (".", "server", "server/data", "server/tmp", "server/uploads"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o700, name
    for secret in (store.secret_key, endpoint.secret.reveal()):
        assert secret.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert secret.encode() not in Path(f"/proc/{server.pid}/environ").read_bytes()
        assert secret not in repr(endpoint)
        assert secret not in (directory / "log").read_text()
    assert await server.credentials() == sorted([("boxd-admin", ""), (store.access_key, "vol/")])


async def test_keys_objects_and_port_survive_a_restart(
    server: EmbeddedObjectServer, directory: Path
) -> None:
    endpoint = await server.start()
    store = await volume(server, endpoint)
    assert send(store, "PUT", "/drive/vol/x", body=b"kept").status == 200
    await server.stop()
    assert not (directory / "server" / "state.json").exists()
    again = EmbeddedObjectServer(directory, user=USER)
    try:
        assert (await again.start()).url == endpoint.url
        assert send(store, "GET", "/drive/vol/x").body == b"kept"
    finally:
        await again.stop()


async def test_a_server_of_an_earlier_release_is_adopted_and_its_files_move(
    directory: Path,
) -> None:
    first = EmbeddedObjectServer(directory, user=USER)
    endpoint = await first.start()
    store = await volume(first, endpoint)
    assert send(store, "PUT", "/drive/vol/x", body=b"kept").status == 200
    await first.stop()
    for file in (directory / "server").iterdir():
        os.chown(file, 0, 0)
        file.rename(directory / file.name)
    (directory / "server").rmdir()
    for path in (directory / "data").rglob("*"):
        os.chown(path, 0, 0)
    config = json.loads((directory / "config.json").read_text())
    config |= {"directory": str(directory), "port": urlsplit(endpoint.url).port}
    (directory / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "objectserver", str(directory / "config.json")]
    with await asyncio.to_thread(subprocess.Popen, command) as earlier:
        second = EmbeddedObjectServer(directory, user=USER, on_crash=lambda _: None)
        try:
            await until((directory / "state.json").exists)
            assert (await second.start()).url == endpoint.url
            assert second.pid == earlier.pid
            assert send(store, "GET", "/drive/vol/x").body == b"kept"
            earlier.kill()
            await until(lambda: replaced(second, earlier.pid))
            assert send(store, "GET", "/drive/vol/x").body == b"kept"
            assert send(store, "PUT", "/drive/vol/x", body=b"new").status == 200
            assert not (directory / "data").exists()
        finally:
            await second.stop()


async def test_a_running_server_is_adopted(server: EmbeddedObjectServer, directory: Path) -> None:
    lines: list[str] = []
    endpoint = await server.start()
    pid = server.pid
    await server.detach()
    second = EmbeddedObjectServer(directory, user=USER, on_crash=lines.append)
    try:
        assert await second.start() == endpoint
        assert second.pid == pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: second.pid not in (pid, None))
        assert len(lines) == 1
        assert await second.start() == endpoint
    finally:
        await second.stop()


def grown(found: dict[str, bytes], size: int) -> bool:
    return len(found) >= size


def replaced(server: EmbeddedObjectServer, pid: int) -> bool:
    return server.pid not in (pid, None)


async def test_a_second_server_of_one_directory_is_refused(
    server: EmbeddedObjectServer, directory: Path
) -> None:
    await server.start()
    (directory / "server" / "state.json").rename(directory / "server" / "hidden")
    second = EmbeddedObjectServer(directory, user=USER)
    with pytest.raises(Unavailable, match="already running"):
        await second.start()
    (directory / "server" / "hidden").rename(directory / "server" / "state.json")


async def test_a_taken_port_is_named(directory: Path) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    directory.mkdir(mode=0o700)
    (directory / "port").write_text(str(port))
    server = EmbeddedObjectServer(directory, user=USER)
    try:
        with pytest.raises(Unavailable, match=str(port)):
            await server.start()
    finally:
        await server.stop()
        taken.close()
        await taken.wait_closed()


async def test_a_key_table_open_to_others_is_refused(directory: Path) -> None:
    (directory / "server").mkdir(mode=0o700, parents=True)
    (directory / "server" / "keys.json").write_text("{}")
    (directory / "server" / "keys.json").chmod(0o644)
    server = EmbeddedObjectServer(directory, user=USER)
    try:
        with pytest.raises(Unavailable, match="chmod 600"):
            await server.start()
    finally:
        await server.stop()


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """The directory on a file system of 12 MiB."""
    directory.mkdir(mode=0o700)
    options = "size=12m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.promise("D1")
async def test_killed_while_writing_keeps_every_acknowledged_object(
    server: EmbeddedObjectServer, directory: Path
) -> None:
    endpoint = await server.start()
    config = await volume(server, endpoint)
    store = client(config)
    chance = random.Random(4)
    acknowledged: dict[str, bytes] = {}
    began: dict[str, bytes] = {}
    numbers = iter(range(10**6))

    async def writer(stop: asyncio.Event) -> None:
        while not stop.is_set():
            key = f"vol/{next(numbers)}/0"
            body = chance.randbytes(chance.choice([1000, 70_000, 3 * MIB]))
            began[key] = hashlib.sha256(body).digest()
            with contextlib.suppress(BaseError):
                await obstore.put_async(store, key, body, use_multipart=False)
                acknowledged[key] = began[key]
            if key not in acknowledged:
                return

    for _ in range(8):
        stop = asyncio.Event()
        tasks = [asyncio.create_task(writer(stop)) for _ in range(4)]
        enough = len(acknowledged) + chance.randrange(3, 12)
        await until(partial(grown, acknowledged, enough))
        killed = server.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        stop.set()
        await asyncio.gather(*tasks)
        await until(partial(replaced, server, killed))
    rows = [row async for page in obstore.list(store, "vol/") for row in page]
    assert acknowledged.keys() <= {row["path"] for row in rows}
    for row in rows:
        found = await (await obstore.get_async(store, row["path"])).bytes_async()
        assert hashlib.sha256(bytes(found)).digest() == began[row["path"]]
    await server.stop()
    assert (await server.start()).url == endpoint.url
    assert list((directory / "server" / "tmp").iterdir()) == []


async def test_a_full_disk_is_answered_and_nothing_is_stored(small_disk: Path) -> None:
    server = EmbeddedObjectServer(small_disk, user=USER)
    try:
        store = await volume(server, await server.start())
        assert send(store, "PUT", "/drive/vol/fits", body=b"x" * 4 * MIB).status == 200
        full = send(store, "PUT", "/drive/vol/large", body=b"x" * 16 * MIB)
        assert (full.status, full.code) == (507, "InsufficientStorage")
        assert send(store, "GET", "/drive/vol/large").code == "NoSuchKey"
        again = send(store, "PUT", "/drive/vol/fits", body=b"y" * 16 * MIB)
        assert again.status == 507
        assert send(store, "GET", "/drive/vol/fits").body == b"x" * 4 * MIB
        assert list((small_disk / "server" / "tmp").iterdir()) == []
        assert send(store, "PUT", "/drive/vol/after", body=b"z" * 4 * MIB).status == 200
    finally:
        await server.stop()


class BrokenDisk(ObjectFiles):
    """Every fsync of an object fails, as a dying disk's does."""

    def spool(self) -> Spool:
        return _BrokenSpool(self.temporary)


class _BrokenSpool(Spool):
    def seal(self, info: ObjectInfo) -> None:
        super().seal(info)
        raise OSError(5, "Input/output error")


async def test_a_failed_fsync_is_answered_and_nothing_is_stored(
    tmp_path: Path, assert_logs: AssertLogs
) -> None:
    keys = KeyTable(tmp_path / "keys.json")
    keys.add(Credential("key", Secret("secret"), "vol/"))
    config = ServerConfig(directory=str(tmp_path))
    working = assemble(config, keys, ObjectFiles(tmp_path))
    port = await working.start("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    store = StoreConfig(url, "drive", "vol", "us-east-1", "key", "secret")
    put = await asyncio.to_thread(send, store, "PUT", "/drive/vol/x", body=b"first")
    assert put.status == 200
    await working.stop(5)
    broken = assemble(config, keys, BrokenDisk(tmp_path))
    store = replace(store, endpoint=f"http://127.0.0.1:{await broken.start('127.0.0.1', 0)}")
    for key in ("x", "y"):
        with assert_logs("Input/output error"):
            failed = await asyncio.to_thread(
                send, store, "PUT", f"/drive/vol/{key}", body=b"second"
            )
        assert (failed.status, failed.code) == (500, "InternalError")
    got = await asyncio.to_thread(send, store, "GET", "/drive/vol/x")
    assert got.body == b"first"
    absent = await asyncio.to_thread(send, store, "GET", "/drive/vol/y")
    assert absent.code == "NoSuchKey"
    assert list((tmp_path / "tmp").iterdir()) == []
    await broken.stop(5)


async def test_a_damaged_file_is_never_served(
    server: EmbeddedObjectServer, directory: Path
) -> None:
    store = await volume(server, await server.start())
    assert send(store, "PUT", "/drive/vol/x", body=b"b" * 300_000).status == 200
    file = directory / "server" / "data" / "vol" / "x.o"
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:1000], b"", whole[:100] + whole[200:]):
        file.write_bytes(damaged)
        assert send(store, "GET", "/drive/vol/x").code == "InvalidObjectState"
        assert send(store, "HEAD", "/drive/vol/x").status == 403, "asking again does not help"
        listed = send(store, "GET", "/drive?prefix=vol/")
        assert b"<Key>vol/x</Key>" in listed.body
    assert send(store, "PUT", "/drive/vol/x", body=b"new").status == 200
    assert send(store, "GET", "/drive/vol/x").body == b"new"


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"{}\n",
        b'{"op": "add"}\n',
        b'{"op": "add", "access_key": "k", "secret": "s", "prefix": "no-slash"}\n',
        b'{"op": "add", "access_key": "k", "secret": 5, "prefix": "a/"}\n',
        b'{"op": "add", "access_key": 5, "secret": "s", "prefix": "a/"}\n',
        b'{"op": "drop"}\n',
        b"\xff\xfe\n",
        b'{"op": "list"' + b" " * 100_000 + b"}\n",
    ],
)
async def test_bad_commands_change_nothing(
    server: EmbeddedObjectServer, directory: Path, line: bytes
) -> None:
    await server.start()
    before = await server.credentials()
    reader, writer = await asyncio.open_unix_connection(directory / "server" / "admin")
    writer.write(line)
    with contextlib.suppress(ConnectionError):
        answer = await reader.readline()
        assert answer == b"" or "error" in json.loads(answer)
    writer.close()
    assert await server.credentials() == before
