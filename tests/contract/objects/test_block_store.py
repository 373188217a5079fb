"""What every block store does: memory, and S3 against the real object server."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.doubles.block_store import MemoryBlocks
from wrkfs.config import StoreConfig
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import Corrupt, Missing, StorageError, Unavailable
from wrkfs.layout import BLOCK_SIZE, block_key
from wrkfs.types import SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.data.interface import BlockStore
    from wrkfs.types import BytesLike

PREFIX = "volume"


@pytest.fixture(params=["memory", "s3"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[tuple[BlockStore, str]]:
    """A block store and the prefix it may use."""
    made: BlockStore
    prefix = PREFIX
    if request.param == "memory":
        made = MemoryBlocks()
    else:
        config: StoreConfig = request.getfixturevalue("object_volume")
        made, prefix = S3Blocks(config), config.prefix
    yield made, prefix
    await made.close()


Store = tuple["BlockStore", str]


@pytest.mark.parametrize("size", [1, 4096, 131072, BLOCK_SIZE])
async def test_what_was_put_is_got(store: Store, size: int) -> None:
    blocks, prefix = store
    key, data = block_key(prefix, SliceId(7), 0), os.urandom(size)
    await blocks.put(key, data)
    assert await blocks.get(key, 0, size) == data


async def test_any_buffer_can_be_put(store: Store) -> None:
    blocks, prefix = store
    data = os.urandom(1000)
    buffers: list[BytesLike] = [data, bytearray(data), memoryview(bytearray(data))]
    for number, buffer in enumerate(buffers):
        key = block_key(prefix, SliceId(8), number)
        await blocks.put(key, buffer)
        assert await blocks.get(key, 0, 1000) == data


async def test_ranges(store: Store) -> None:
    blocks, prefix = store
    key, data = block_key(prefix, SliceId(9), 1), os.urandom(10_000)
    await blocks.put(key, data)
    for start, length in ((0, 1), (9_999, 1), (5_000, 2_500), (0, 10_000)):
        assert await blocks.get(key, start, length) == data[start : start + length]


async def test_a_missing_object_is_told_apart(store: Store) -> None:
    blocks, prefix = store
    with pytest.raises(Missing):
        await blocks.get(block_key(prefix, SliceId(1), 0), 0, 1)


async def test_a_short_object_is_corrupt(store: Store) -> None:
    blocks, prefix = store
    key = block_key(prefix, SliceId(1), 0)
    await blocks.put(key, b"12345")
    with pytest.raises(Corrupt):
        await blocks.get(key, 0, 6)


async def test_putting_the_same_again_changes_nothing(store: Store) -> None:
    blocks, prefix = store
    key = block_key(prefix, SliceId(1), 0)
    for _ in range(2):
        await blocks.put(key, b"same")
    assert bytes(await blocks.get(key, 0, 4)) == b"same"


async def test_delete_takes_absent_objects_too(store: Store) -> None:
    blocks, prefix = store
    keys = [block_key(prefix, SliceId(number), 0) for number in range(1, 6)]
    for key in keys[::2]:
        await blocks.put(key, b"x")
    await blocks.delete(keys)
    await blocks.delete(keys[:1])
    await blocks.delete([])
    for key in keys:
        with pytest.raises(Corrupt):
            await blocks.get(key, 0, 1)


async def test_many_at_once(store: Store) -> None:
    blocks, prefix = store
    data = {block_key(prefix, SliceId(2), n): os.urandom(100_000) for n in range(24)}
    await asyncio.gather(*(blocks.put(key, value) for key, value in data.items()))
    found = await asyncio.gather(*(blocks.get(key, 0, 100_000) for key in data))
    assert [bytes(value) for value in found] == list(data.values())


async def test_a_closed_store_refuses(store: Store) -> None:
    blocks, prefix = store
    await blocks.close()
    await blocks.close()
    with pytest.raises(Unavailable):
        await blocks.put(block_key(prefix, SliceId(1), 0), b"x")


async def test_s3_keys_outside_of_the_prefix_are_refused(object_volume: StoreConfig) -> None:
    blocks = S3Blocks(object_volume)
    for key in ("other/1/0", object_volume.prefix, object_volume.prefix + "x/1/0"):
        with pytest.raises(ValueError, match="prefix"):
            await blocks.put(key, b"x")
    await blocks.close()


async def test_s3_a_foreign_prefix_is_an_error_at_once(object_volume: StoreConfig) -> None:
    blocks = S3Blocks(replace(object_volume, prefix="foreign"))
    with pytest.raises(StorageError):
        await blocks.put("foreign/1/0", b"x")
    with pytest.raises(StorageError):
        await blocks.get("foreign/1/0", 0, 1)
    await blocks.close()


async def test_s3_an_outage_is_unavailable_after_the_deadline() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        config = StoreConfig(f"http://127.0.0.1:{port}", "bucket", PREFIX, "r", "key", "secret")
        blocks = S3Blocks(config, deadline=0.3)
        with pytest.raises(Unavailable) as caught:
            await blocks.get(f"{PREFIX}/1/0", 0, 1)
        assert "no success within 0.3 s" in str(caught.value)
        assert "secret" not in str(caught.value)
        await blocks.close()


async def test_memory_hooks_stand_in_for_faults() -> None:
    blocks = MemoryBlocks()
    seen: list[str] = []

    async def note(key: str) -> None:
        seen.append(key)

    async def refuse(key: str) -> None:
        raise Unavailable(key)

    blocks.before_put = blocks.before_get = blocks.before_delete = note
    await blocks.put("k", b"x")
    await blocks.get("k", 0, 1)
    await blocks.delete(["k"])
    assert seen == ["k", "k", "k"]
    blocks.after_put = refuse
    with pytest.raises(Unavailable):
        await blocks.put("k", b"x")
    assert blocks.objects == {"k": b"x"}, "stored, but the caller was not told"
    with pytest.raises(Corrupt):
        await blocks.put("k", b"y")
