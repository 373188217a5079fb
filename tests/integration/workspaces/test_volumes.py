"""Volumes on the real database and the real object server."""

from __future__ import annotations

import asyncio
import os
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import boto3
import pytest

from boxd.embedded.objectstore import EmbeddedObjectServer
from boxd.errors import Unavailable
from boxd.store.postgres.store import PostgresStore
from boxd.workspaces.credentials import StoreTarget
from boxd.workspaces.idle_upkeep import IdleUpkeep
from boxd.workspaces.provision import Provisioner
from tests.harness.volumes.leaks import listed
from tests.harness.workspaces.volumes import World, world
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import QuotaExceeded
from wrkfs.fs import Filesystem
from wrkfs.layout import block_key
from wrkfs.meta.sql import migrate
from wrkfs.types import ROOT_INO, Caller, SliceId
from wrkfs.upkeep import trash
from wrkfs.upkeep.background import Pace

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.model.volume import Volume
    from boxd.secret import Secret
    from tests.harness.servers.objectserver import ObjectServer
    from tests.plugins.strict_logs import AssertLogs
    from wrkfs.config import VolumeConfig

__all__ = ["world"]


OWNER = "SHA256:canary-owner"


async def works(config: VolumeConfig) -> None:
    """The drive can be used with this configuration."""
    drive = await Filesystem.connect(config)
    await drive.close()
    blocks = S3Blocks(config.store)
    await blocks.put(f"{config.store.prefix}/1/0", b"block")
    assert bytes(await blocks.get(f"{config.store.prefix}/1/0", 0, 5)) == b"block"
    await blocks.close()


async def test_ensure_makes_a_working_volume_once(world: World) -> None:
    volumes = world.volumes()
    assert await volumes.find(OWNER, None) is None
    made = await volumes.ensure(OWNER, None)
    await works(made)
    assert await volumes.ensure(OWNER, None) == made
    assert await world.volumes().find(OWNER, None) == made
    other = await volumes.ensure(OWNER, "other")
    assert other.volume != made.volume
    assert other.store.prefix != made.store.prefix
    assert other.schema != made.schema


async def test_stored_volumes_follow_the_servers(world: World) -> None:
    made = await world.volumes().ensure(OWNER, "moved")
    world.target = StoreTarget("https://elsewhere.example", "bucket", "region")
    world.provisioner = Provisioner("postgresql://admin:x@/boxd?host=%2Felsewhere")
    found = await world.volumes().find(OWNER, "moved")
    assert found is not None
    assert found.store.endpoint == "https://elsewhere.example"
    assert found.store.secret_key == made.store.secret_key
    assert found.meta_dsn.endswith("@/boxd?host=%2Felsewhere")
    assert found.meta_dsn.split("@")[0] == made.meta_dsn.split("@")[0]


async def test_the_database_holds_no_secret_in_clear(world: World) -> None:
    made = await world.volumes().ensure(OWNER, "sealed")
    [volume] = await world.store.list_volumes(OWNER)
    for secret in (made.store.secret_key, made.store.access_key, made.meta_dsn):
        assert secret.encode() not in volume.sealed
    assert made.store.secret_key not in repr(made)
    connection = await asyncpg.connect(world.dsn)
    stored = await connection.fetchval(
        "SELECT rolpassword FROM pg_authid WHERE rolname = $1", made.schema
    )
    await connection.close()
    assert stored.startswith("SCRAM-SHA-256$4096:")


async def test_concurrent_callers_get_one_volume(world: World) -> None:
    before = await world.traces()
    volumes, elsewhere = world.volumes(), world.volumes()
    made = await asyncio.gather(
        *(which.ensure(OWNER, "race") for which in (volumes, elsewhere) for _ in range(8))
    )
    assert len({config.volume for config in made}) == 1
    after = await world.traces()
    assert [len(part) for part in after[:3]] == [len(part) + 1 for part in before[:3]]
    assert after[3] == before[3] + 1
    await works(made[0])


class FailingIssue(EmbeddedObjectServer):
    async def issue(self, prefix: str) -> tuple[str, Secret]:
        raise Unavailable("injected")


class FailingCreate(Provisioner):
    """Fails inside the transaction that makes the role."""

    async def create(self) -> tuple[str, Secret]:
        async with self._connection() as connection, connection.transaction():
            await connection.execute("CREATE ROLE v00000000000000000000000000000000")
            await connection.execute("SELECT 1/0")
        raise AssertionError


class FailingAdd(PostgresStore):
    async def add_volume(self, volume: Volume) -> None:
        raise Unavailable("injected")


@pytest.mark.parametrize("step", ["issue", "create", "add"])
async def test_a_failed_creation_leaves_nothing(
    world: World, objectserver: ObjectServer, step: str
) -> None:
    before = await world.traces()
    working = world.volumes()
    issuer, provisioner, store = world.issuer, world.provisioner, world.store
    if step == "issue":
        world.issuer = FailingIssue(objectserver.directory)
    elif step == "create":
        world.provisioner = FailingCreate(world.dsn)
    else:
        world.store = FailingAdd(world.dsn)
        await world.store.start()
    try:
        with pytest.raises(Unavailable):
            await world.volumes().ensure(OWNER, "failed")
    finally:
        if world.store is not store:
            await world.store.close()
        world.issuer, world.provisioner, world.store = issuer, provisioner, store
    assert await world.traces() == before
    await works(await working.ensure(OWNER, "failed"))


async def test_a_cancelled_creation_leaves_nothing(world: World) -> None:
    before = await world.traces()
    entered = asyncio.Event()

    class Hanging(PostgresStore):
        async def add_volume(self, volume: Volume) -> None:
            entered.set()
            await asyncio.Event().wait()

    store, world.store = world.store, Hanging(world.dsn)
    await world.store.start()
    task = asyncio.create_task(world.volumes().ensure(OWNER, "cancelled"))
    await asyncio.wait_for(entered.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.store.close()
    world.store = store
    assert await world.traces() == before


async def test_another_time_of_the_trash_reaches_volumes_in_use(world: World) -> None:
    drive = await Filesystem.connect(await world.volumes().ensure(OWNER, "trash"))

    async def remove(name: bytes) -> None:
        _, handle = await drive.create(ROOT_INO, name, 0o600, os.O_RDWR, Caller(0, 0))
        await handle.write(0, name)
        await handle.close()
        await drive.unlink(ROOT_INO, name)

    async def kept() -> list[bytes | None]:
        await trash.tidy(drive)
        return [removed.path async for removed in trash.entries(drive)]

    try:
        await remove(b"first")
        assert await kept() == [b"first"]
        for seconds in (3600, 10**9):
            await Provisioner(world.dsn, trash_seconds=seconds).prepare()
            assert await kept() == [b"first"]
        await Provisioner(world.dsn, trash_seconds=0).prepare()
        await remove(b"second")
        assert [removed.path async for removed in trash.entries(drive)] == [b"first"]
        assert await kept() == []
        await world.provisioner.prepare()
        await remove(b"third")
        assert await kept() == [b"third"]
    finally:
        await drive.close()


async def test_another_quota_reaches_volumes_in_use_and_new_ones(world: World) -> None:
    drive = await Filesystem.connect(await world.volumes().ensure(OWNER, "quota"))

    async def limits() -> tuple[int | None, int | None]:
        told = await drive.statfs()
        return told.bytes_limit, told.inodes_limit

    try:
        assert await limits() == (None, None)
        strict = Provisioner(world.dsn, bytes_limit=100_000, inodes_limit=5)
        await strict.prepare()
        assert await limits() == (100_000, 5)
        await world.provisioner.prepare(limits=False)
        assert await limits() == (100_000, 5)
        for number in range(5):
            await drive.mkdir(ROOT_INO, b"%d" % number, 0o700, Caller(0, 0))
        with pytest.raises(QuotaExceeded):
            await drive.mkdir(ROOT_INO, b"more", 0o700, Caller(0, 0))
        await world.provisioner.prepare()
        await drive.mkdir(ROOT_INO, b"more", 0o700, Caller(0, 0))
        world.provisioner = strict
        other = await Filesystem.connect(await world.volumes().ensure(OWNER, "new"))
        assert (await other.statfs()).inodes_limit == 5
        await other.close()
    finally:
        await drive.close()


async def test_what_was_removed_leaves_a_volume_that_nobody_uses(world: World) -> None:
    volumes = world.volumes()
    config = await volumes.ensure(OWNER, "left")
    clean = await volumes.ensure(OWNER, "clean")
    drive = await Filesystem.connect(config)
    for name in (b"kept", b"removed"):
        _, handle = await drive.create(ROOT_INO, name, 0o600, os.O_RDWR, Caller(0, 0))
        await handle.write(0, bytes(200_000))
        await handle.close()
    assert (await volumes.sizes())[OWNER] == 400_000
    await drive.unlink(ROOT_INO, b"removed")
    async with asyncio.timeout(60):  # the end of its handle is told a moment later
        while (await volumes.sizes())[OWNER] != 200_000:
            pass
    upkeep = IdleUpkeep(volumes, pace=Pace(grace=timedelta(0)))
    await Provisioner(world.dsn, trash_seconds=0).prepare()
    assert await upkeep.run_round() == 0
    await drive.close()
    assert clean.volume not in {one.volume for one in await volumes.wasteful()}
    async with asyncio.timeout(60):
        while await upkeep.run_round():
            pass
    assert len(await asyncio.to_thread(listed, config.store)) == 1
    await works(config)


async def test_who_died_keeps_nothing_in_a_volume_that_nobody_uses(world: World) -> None:
    volumes = world.volumes()
    config = await volumes.ensure(OWNER, "died")
    admin = await asyncpg.connect(world.dsn, server_settings={"search_path": config.schema})
    blocks = S3Blocks(config.store)
    try:
        await blocks.put(block_key(config.store.prefix, SliceId(7), 0), bytes(10))
        await admin.execute("""
            UPDATE counter SET next = 100;
            INSERT INTO slice_range (first, count, session_id) VALUES (1, 10, 50);
            INSERT INTO session (session_id, epoch, kind, started_at, heartbeat_at, expires_at,
                suspected_at)
            SELECT 50, 1, 'mount', past, past, past, past + interval '1 hour'
            FROM (SELECT clock_timestamp() - interval '2 hours' AS past) AS p""")
        upkeep = IdleUpkeep(volumes, pace=Pace(grace=timedelta(0)))
        async with asyncio.timeout(60):
            while await upkeep.run_round():
                pass
        assert not await asyncio.to_thread(listed, config.store)
        assert await admin.fetchval("SELECT count(*) FROM session") == 0
        # A role that locks its tables keeps nobody waiting for long.
        async with admin.transaction():
            await admin.execute("LOCK TABLE deleted")
            assert await volumes.wasteful() == []
        async with admin.transaction():
            await admin.execute("LOCK TABLE usage")
            assert (await volumes.sizes())[OWNER] == 0
    finally:
        await blocks.close()
        await admin.close()


async def test_sweep_removes_the_half_made_and_keeps_files(
    world: World, assert_logs: AssertLogs
) -> None:
    volumes = world.volumes()
    kept = await volumes.ensure(OWNER, "kept")
    before = await world.traces()
    await world.provisioner.create()
    orphan_key, _ = await world.issuer.issue("p" + "0" * 32)
    lost = await volumes.ensure(OWNER, "lost")
    drive = await Filesystem.connect(lost)
    await drive.mkdir(ROOT_INO, b"directory", 0o755, Caller(0, 0))
    await drive.close()
    await world.store.remove_volume(lost.volume)
    with assert_logs("contains files, but no workspace uses it"):
        assert await volumes.sweep() >= 2
    assert orphan_key not in dict(await world.issuer.credentials())
    after = await world.traces()
    assert set(after[0]) == {*before[0], lost.schema}
    await works(kept)


async def test_drop_ends_sessions_and_removes_everything(world: World) -> None:
    before = await world.traces()
    name, password = await world.provisioner.create()
    connection = await asyncpg.connect(world.provisioner.dsn(name, password))
    await world.provisioner.drop(name)
    await world.provisioner.drop(name)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    connection.terminate()
    assert await world.traces() == before
    with pytest.raises(ValueError, match="not a volume"):
        await world.provisioner.drop("boxd")


async def test_revoked_credentials_end_at_once(world: World) -> None:
    made = await world.volumes().ensure(OWNER, "revoked")
    client = boto3.client(
        "s3",
        endpoint_url=made.store.endpoint,
        region_name=made.store.region,
        aws_access_key_id=made.store.access_key,
        aws_secret_access_key=made.store.secret_key,
    )
    client.head_bucket(Bucket=made.store.bucket)
    await world.issuer.revoke(made.store.access_key)
    with pytest.raises(client.exceptions.ClientError, match="403"):
        client.head_bucket(Bucket=made.store.bucket)
    client.close()


async def test_a_start_brings_volumes_of_an_older_release_up(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.volumes().ensure(OWNER, "old")
    newer = tmp_path / "release"
    shutil.copytree(migrate.HERE, newer)
    number = max(int(file.name[:4]) for file in (newer / "migrations").glob("[0-9]*.sql")) + 1
    # Mounts run meanwhile: no function of theirs may work on tables of the new release.
    (newer / "migrations" / f"{number:04}_more.sql").write_text(
        "CREATE TABLE more (a int); DO 'BEGIN ASSERT to_regnamespace(''wrkfs'') IS NULL; END'"
    )
    grants = {**migrate._GRANTS, "SELECT": (*migrate._GRANTS["SELECT"], "more")}
    with monkeypatch.context() as release:
        release.setattr(migrate, "HERE", newer)
        release.setattr(migrate, "_GRANTS", grants)
        await world.provisioner.prepare()
        await world.provisioner.prepare()
    connection = await asyncpg.connect(made.meta_dsn)
    try:
        assert await connection.fetchval("SELECT schema_version FROM volume") == number
        assert await connection.fetch("SELECT a FROM more") == []
    finally:
        await connection.close()
    await works(made)
    with pytest.raises(Unavailable, match="newer"):
        await world.provisioner.prepare()
