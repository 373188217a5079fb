"""Filesystems for HTTP on real stores: shared, closed when idle, made by writing only."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from boxd.errors import QuotaExceeded, Unavailable
from boxd.workspaces.journals import HostJournals
from boxd.workspaces.pool import IDLE, LIMITS, MAX_OPEN, MAX_OWNER, SHARE, DrivePool, most_open
from tests.harness.simulation.world import TurnedClock
from tests.harness.volumes.leaks import listed
from wrkfs.meta.delegations.store import DelegatedMeta
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller
from wrkfs.upkeep import background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from wrkfs.config import VolumeConfig
    from wrkfs.fs import Filesystem

OWNER = "SHA256:alice"
ALICE = Caller(1000, 1000)


class OneVolume:
    """Gives one volume to every workspace, once it was asked to make it."""

    def __init__(self, config: VolumeConfig) -> None:
        self._config = config
        self.made: set[tuple[str, str | None]] = set()

    async def find(self, owner: str, workspace: str | None) -> VolumeConfig | None:
        """What was made."""
        return self._config if (owner, workspace) in self.made else None

    async def ensure(self, owner: str, workspace: str | None) -> VolumeConfig:
        """Makes it."""
        self.made.add((owner, workspace))
        return self._config


@pytest.fixture
def volumes(volume: VolumeConfig) -> OneVolume:
    """No volume was made yet."""
    return OneVolume(volume)


@pytest.fixture
def clock() -> TurnedClock:
    """The clock of `pool`."""
    return TurnedClock()


@pytest.fixture
async def pool(volumes: OneVolume, clock: TurnedClock) -> AsyncIterator[DrivePool]:
    """A pool of at most two."""
    made = DrivePool(volumes, clock, max_open=2)
    yield made
    await made.close()


@pytest.mark.parametrize("memory", [1 << 30, 4 << 30, 8 << 30, 1 << 40])
def test_all_together_take_a_share_of_the_memory(memory: int) -> None:
    count = most_open(memory)
    assert MAX_OWNER <= count <= MAX_OPEN
    if count > MAX_OWNER:
        assert count * (LIMITS.blocks + LIMITS.dirty) <= memory // SHARE
    assert most_open(memory) <= most_open(2 * memory)
    assert most_open(1 << 40) == MAX_OPEN


async def test_looking_makes_no_volume_and_writing_does(
    pool: DrivePool, volumes: OneVolume
) -> None:
    async with pool.use(OWNER, None, create=False) as fs:
        assert fs is None
    assert volumes.made == set()
    async with pool.use(OWNER, None, create=True) as fs:
        assert fs is not None
    async with pool.use(OWNER, None, create=False) as again:
        assert again is fs


async def test_idle_ones_are_closed_and_used_ones_are_not(
    pool: DrivePool, clock: TurnedClock
) -> None:
    async with pool.use(OWNER, "used", create=True) as used:
        async with pool.use(OWNER, "idle", create=True) as idle:
            pass
        clock.turn(timedelta(seconds=IDLE))
        await pool.close_idle()
        assert used is not None
        await used.getattr(ROOT_INO)
        async with pool.use(OWNER, "used", create=False) as same:
            assert same is used
        async with pool.use(OWNER, "idle", create=False) as fresh:
            assert fresh is not idle
            assert fresh is not None
            await fresh.getattr(ROOT_INO)


async def test_garbage_of_a_volume_that_only_http_uses_is_collected(
    volumes: OneVolume, clock: TurnedClock, volume: VolumeConfig, drive_database: str
) -> None:
    admin = await asyncpg.connect(drive_database)
    await admin.execute(f"UPDATE {volume.schema}.volume SET trash_seconds = 1")  # noqa: S608 ours
    await admin.close()
    pace = background.Pace(interval=0.2, grace=timedelta(seconds=1))
    pool = DrivePool(volumes, clock, pace=pace)
    try:
        async with pool.use(OWNER, None, create=True) as fs:
            assert fs is not None
            for name in (b"kept", b"replaced", b"removed"):
                await stored(fs, name)
            await fs.unlink(ROOT_INO, b"removed")
            await stored(fs, b"new")
            await fs.rename(ROOT_INO, b"new", ROOT_INO, b"replaced")
        async with asyncio.timeout(60):
            while len(await asyncio.to_thread(listed, volume.store)) > 2:  # noqa: ASYNC110 no event
                await asyncio.sleep(0.1)
        async with pool.use(OWNER, None, create=False) as fs:
            assert fs is not None
            for name, content in ((b"kept", b"k"), (b"replaced", b"n")):
                handle = await fs.open((await fs.lookup(ROOT_INO, name)).ino, os.O_RDONLY)
                assert await handle.read(0, 200_001) == content * 200_000
                await handle.close()
    finally:
        await pool.close()


async def stored(fs: Filesystem, name: bytes) -> None:
    """A file whose bytes are an object."""
    _, handle = await fs.create(ROOT_INO, name, 0o644, os.O_RDWR, Caller(0, 0))
    await handle.write(0, name[:1] * 200_000)
    await handle.close()


async def test_their_number_is_bounded(pool: DrivePool) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(pool.use(OWNER, "a", create=True))
        async with pool.use(OWNER, "b", create=True):
            with pytest.raises(Unavailable, match="2 drives are in use"):
                await stack.enter_async_context(pool.use(OWNER, "c", create=True))
        await stack.enter_async_context(pool.use(OWNER, "c", create=True))
        assert await stack.enter_async_context(pool.use(OWNER, "a", create=False)) is first


async def test_one_owner_leaves_room_for_others(volumes: OneVolume, clock: TurnedClock) -> None:
    pool = DrivePool(volumes, clock)
    try:
        async with AsyncExitStack() as stack:
            for number in range(MAX_OWNER):
                await stack.enter_async_context(pool.use(OWNER, f"w{number}", create=True))
            with pytest.raises(QuotaExceeded, match="of your drives"):
                await stack.enter_async_context(pool.use(OWNER, "more", create=True))
            await stack.enter_async_context(pool.use("SHA256:bob", None, create=True))
    finally:
        await pool.close()


async def test_a_request_gets_what_a_dead_mount_had_not_sent(
    volumes: OneVolume,
    clock: TurnedClock,
    volume: VolumeConfig,
    drive_database: str,
    tmp_path: Path,
) -> None:
    journals = HostJournals(tmp_path)
    async with journals.open(volume) as directory:
        mount = DelegatedMeta(
            PostgresMeta(volume, leases=True, delegates=True), volume.schema, directory
        )
    await mount.start()
    home = await mount.mkdir(ROOT_INO, b"home", 0o755, ALICE)
    await mount.sync()
    await mount.create(home.ino, b"unsent", 0o644, ALICE, exclusive=True)
    # As SIGKILL ends the process: nothing is sent, and nobody tells the database.
    await mount._flusher.stop()
    assert not mount._flusher.idle
    mount._flusher.close_journal()
    session = mount._inner
    assert isinstance(session, PostgresMeta)
    await session._session._stop_heartbeat()
    admin = await asyncpg.connect(drive_database)
    await admin.execute(
        f"UPDATE {volume.schema}.session "  # noqa: S608 ours
        "SET expires_at = now() - interval '1 s', heartbeat_at = now() - interval '1 day', "
        "suspected_at = now() - interval '1 day'"
    )
    await admin.close()
    pool = DrivePool(volumes, clock, journals=journals)
    try:
        async with pool.use(OWNER, None, create=True) as fs:
            assert fs is not None
            assert (await fs.lookup(home.ino, b"unsent")).ino
        assert list(directory.iterdir()) == []
    finally:
        await pool.close()
        await mount.close()
