"""Filesystems for HTTP on real stores: shared, closed when idle, made by writing only."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import QuotaExceeded, Unavailable
from boxd.workspaces.pool import IDLE, MAX_OWNER, DrivePool
from tests.harness.world import TurnedClock
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.config import VolumeConfig

OWNER = "SHA256:alice"


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
