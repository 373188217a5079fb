"""The end of connections."""

from __future__ import annotations

from typing import cast

import asyncpg
import pytest

from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.meta.postgres.links import Link, Links


class Ending:
    """A connection whose server is gone: `close` raises as asyncpg does."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.terminated = False

    async def close(self, *, timeout: float) -> None:
        assert timeout > 0
        raise self._error

    def terminate(self) -> None:
        self.terminated = True


@pytest.fixture
def config() -> VolumeConfig:
    """The configuration of a database that the test does not use."""
    store = StoreConfig("http://127.0.0.1:1", "b", "p", "r", "k", "s")
    return VolumeConfig(
        volume="v", schema="v", meta_dsn="postgresql://u:p@127.0.0.1:1/d", store=store
    )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError,
        TimeoutError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        asyncpg.AdminShutdownError,
    ],
)
async def test_close_ends_every_connection(config: VolumeConfig, error: type[Exception]) -> None:
    links = Links(config, size=2)
    ending = [Ending(error("gone")), Ending(error("gone"))]
    links._idle = [Link(cast("asyncpg.Connection", one)) for one in ending]
    await links.close()
    assert all(one.terminated for one in ending)
