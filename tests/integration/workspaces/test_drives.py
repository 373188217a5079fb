"""Drives of workspaces on the real database and the real object server: measured, and removed."""

from __future__ import annotations

import asyncio

import pytest

from boxd.errors import Conflict, Unavailable
from tests.harness.volumes.leaks import listed
from tests.harness.workspaces.drives import OWNER, SIZE, Parts, parts
from tests.harness.workspaces.volumes import World, world
from wrkfs.data.s3 import CLEAR_BATCH, S3Blocks
from wrkfs.types import ROOT_INO

__all__ = ["parts", "world"]


async def test_each_drive_is_measured_and_one_that_was_never_used_is_missing(parts: Parts) -> None:
    assert await parts.drives.usage(OWNER) == {}
    assert await parts.drives.is_empty(OWNER, "ws1")
    await parts.write(None)
    await parts.write("ws1", b"one")
    await parts.write("ws1", b"two")
    await parts.volumes.ensure(OWNER, "empty")
    found = await parts.drives.usage(OWNER)
    assert {name: (use.bytes, use.files) for name, use in found.items()} == {
        None: (SIZE, 1),
        "ws1": (2 * SIZE, 2),
        "empty": (0, 0),
    }
    assert await parts.drives.is_empty(OWNER, "empty")
    assert not await parts.drives.is_empty(OWNER, "ws1")
    assert await parts.drives.usage("SHA256:other") == {}


async def test_a_removed_drive_leaves_nothing_and_no_other_one_is_touched(
    parts: Parts, world: World
) -> None:
    await parts.write(None)
    before = await world.traces()
    await parts.write("ws1")
    store = await parts.store("ws1")
    assert listed(store)
    with parts.drives.closing(OWNER, "ws1"):
        await parts.drives.remove(OWNER, "ws1")
        await parts.drives.remove(OWNER, "ws1")
    assert await world.traces() == before
    assert not listed(store)
    async with parts.drives.use(OWNER, None, create=False) as fs:
        assert fs is not None
        assert (await fs.lookup(ROOT_INO, b"file")).size == SIZE
    await parts.write("ws1", b"new")
    assert list(await parts.drives.usage(OWNER)) == [None, "ws1"]


async def test_what_was_cut_off_can_be_done_again(
    parts: Parts, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await world.traces()
    await parts.write("ws1")

    async def failing(self: S3Blocks) -> None:
        raise OSError("the store is away")

    with parts.drives.closing(OWNER, "ws1"):
        with monkeypatch.context() as patch:
            patch.setattr(S3Blocks, "clear", failing)
            with pytest.raises(OSError, match="away"):
                await parts.drives.remove(OWNER, "ws1")
        assert await parts.drives.is_empty(OWNER, "ws1")
        assert "ws1" not in await parts.drives.usage(OWNER)
        await parts.drives.remove(OWNER, "ws1")
    assert await world.traces() == before


async def test_nobody_gets_a_drive_that_is_being_removed(parts: Parts) -> None:
    await parts.write("ws1")
    with parts.drives.closing(OWNER, "ws1"):
        with pytest.raises(Conflict, match="ws1 is being removed"):
            await parts.attacher.prepare(OWNER, "ws1")
        with (
            pytest.raises(Conflict, match="ws1 is being removed"),
            parts.drives.closing(OWNER, "ws1"),
        ):
            pass
        await parts.pool.drop(OWNER, "ws1")
        with pytest.raises(Conflict):
            async with parts.drives.use(OWNER, "ws1", create=True):
                pass
    async with parts.drives.use(OWNER, "ws1", create=False) as fs:
        assert fs is not None


async def test_a_drive_in_use_is_not_removed(parts: Parts) -> None:
    await parts.write("ws1")
    async with parts.drives.use(OWNER, "ws1", create=False):
        with parts.drives.closing(OWNER, "ws1"), pytest.raises(Conflict, match="in use"):
            await parts.drives.remove(OWNER, "ws1")
    assert (await parts.drives.usage(OWNER))["ws1"].files == 1


async def test_more_objects_than_are_listed_at_a_time_are_cleared(parts: Parts) -> None:
    config = await parts.volumes.ensure(OWNER, "many")
    blocks = S3Blocks(config.store)
    try:
        keys = [f"{config.store.prefix}/{number}/0" for number in range(CLEAR_BATCH + 5)]
        for start in range(0, len(keys), 50):
            await asyncio.gather(*(blocks.put(key, b"x") for key in keys[start : start + 50]))
        store = await parts.store("many")
        assert len(listed(store)) == len(keys)
        await blocks.clear()
        assert not listed(store)
    finally:
        await blocks.close()


async def test_a_database_that_is_out_is_told(parts: Parts, world: World) -> None:
    await parts.write("ws1")
    await parts.pool.drop(OWNER, "ws1")
    world.provisioner._admin_dsn = "postgresql://nobody@127.0.0.1:1/none"
    with parts.drives.closing(OWNER, "ws1"), pytest.raises(Unavailable):
        await parts.drives.remove(OWNER, "ws1")
