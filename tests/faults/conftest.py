"""A volume behind proxies that misbehave."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.harness.mounts.frozen import Frozen
from tests.harness.servers.fault_proxy import StoreProxy
from tests.harness.volumes.truth import truth_of
from wrkfs.data.s3 import S3Blocks
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.store import PostgresMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.harness.volumes.truth import Truth
    from wrkfs.config import VolumeConfig


@pytest.fixture
def store(volume: VolumeConfig) -> Iterator[StoreProxy]:
    """Stands before the object server."""
    proxy = StoreProxy(volume.store.endpoint)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture
def frozen() -> Iterator[Frozen]:
    """Stops processes."""
    made = Frozen()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def truth(volume: VolumeConfig) -> Iterator[Truth]:
    """A session of the volume without caches."""
    with truth_of(volume) as made:
        yield made


@pytest_asyncio.fixture
async def connect(
    volume: VolumeConfig, store: StoreProxy
) -> AsyncIterator[Callable[[], Awaitable[Filesystem]]]:
    """Makes Filesystems whose requests to the store go through the proxy."""
    made: list[Filesystem] = []

    async def connect() -> Filesystem:
        meta = PostgresMeta(volume)
        await meta.start()
        config = replace(volume.store, endpoint=store.endpoint)
        blocks = S3Blocks(config)
        made.append(Filesystem(meta, blocks, prefix=config.prefix))
        return made[-1]

    yield connect
    for fs in made:
        await fs.close()
