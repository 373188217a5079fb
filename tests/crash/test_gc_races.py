"""RA-7: collection and compaction against writers and stalled sessions, on the real stores.

Writers overwrite, truncate, replace and remove; a reader holds snapshots; sessions die in the
middle of uploads; all the while objects are collected without any grace and files are compacted.
What was acknowledged is there, no snapshot misses a byte, and one cycle after the end the store
holds exactly the objects that files show.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg
import boto3
import pytest

from tests.harness.loop import run
from wrkfs.errors import Fenced, StorageError
from wrkfs.fs import Filesystem
from wrkfs.layout import KIB, MIB, block_count, block_key
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller, SetAttr
from wrkfs.upkeep import compact, gc, trash

if TYPE_CHECKING:
    from tests.plugins.figures import Figures
    from wrkfs.config import VolumeConfig
    from wrkfs.types import BytesLike, Ino

ME = Caller(0, 0)
NOW = timedelta(0)
NAMES = [b"a", b"b", b"c"]
STEPS = 8
DEADLINE = 30.0
"""Seconds in which every session's heartbeat has told what it reads."""


class World:
    """Two sessions that write, one that collects, and what the files must hold."""

    def __init__(self, config: VolumeConfig) -> None:
        self.config = config
        self.model: dict[bytes, bytes] = {}
        self.stop = False
        self.stepped = asyncio.Event()

    async def open(self) -> None:
        self.writers = [await Filesystem.connect(self.config) for _ in range(2)]
        self.keeper = await Filesystem.connect(self.config)

    async def close(self) -> None:
        for fs in [*self.writers, self.keeper]:
            await fs.close()

    async def round(self, seed: int) -> None:
        """Writers, a reader of snapshots, a session that dies; collection beside them."""
        self.stop = False
        keeping = asyncio.create_task(self._collect())
        try:
            await asyncio.gather(
                *(self._write(fs, seed * 2 + number) for number, fs in enumerate(self.writers)),
                *([self._die(seed)] if seed % 3 == 0 else []),
            )
        finally:
            self.stop = True
            self.stepped.set()
            await keeping
        for name, data in self.model.items():
            assert await self._read(self.keeper, name) == data, name

    async def _collect(self) -> None:
        while not self.stop:
            await compact.compact_all(self.keeper, refs=12)
            await trash.tidy(self.keeper)
            await gc.collect(self.keeper, grace=NOW)
            await self.stepped.wait()
            self.stepped.clear()

    async def _write(self, fs: Filesystem, seed: int) -> None:
        """One writer changes files of its own names only, so that the model is exact."""
        dice = random.Random(seed)
        for step in range(STEPS):
            self.stepped.set()
            name = dice.choice(NAMES) + bytes([48 + seed % 2])
            kind = dice.random()
            if name not in self.model or kind < 0.15:
                await self._replace(
                    fs, name, dice.randbytes(dice.choice([100, 70 * KIB, 300 * KIB]))
                )
            elif kind < 0.65:
                await self._overwrite(fs, name, dice, step)
            elif kind < 0.8:
                size = dice.randrange(0, 2 * len(self.model[name]) + 2)
                await fs.setattr((await fs.lookup(ROOT_INO, name)).ino, SetAttr(size=size))
                data = self.model[name][:size]
                self.model[name] = data + bytes(size - len(data))
            elif kind < 0.9:
                await self._snapshot(fs, name, dice)
            else:
                await fs.unlink(ROOT_INO, name)
                del self.model[name]

    async def _replace(self, fs: Filesystem, name: bytes, data: bytes) -> None:
        handle = await fs.create_unlinked(0o644, ME)
        await handle.write(0, data)
        await fs.publish(handle.ino, ROOT_INO, name)
        await handle.close()
        self.model[name] = data

    async def _overwrite(self, fs: Filesystem, name: bytes, dice: random.Random, step: int) -> None:
        model = bytearray(self.model[name])
        handle = await fs.open((await fs.lookup(ROOT_INO, name)).ino, os.O_RDWR)
        for _ in range(dice.randrange(1, 8)):
            pos = dice.randrange(0, len(model) + 1)
            data = bytes([step + 1]) * dice.choice([10, 4096, 70 * KIB])
            await handle.write(pos, data)
            model.extend(bytes(max(0, pos + len(data) - len(model))))
            model[pos : pos + len(data)] = data
            if dice.random() < 0.5:
                await handle.flush()
        await handle.close()
        self.model[name] = bytes(model)

    async def _snapshot(self, fs: Filesystem, name: bytes, dice: random.Random) -> None:
        """What a slow GET sends is one version, whatever happens to the file meanwhile."""
        expected = self.model[name]
        snapshot = await fs.open_snapshot((await fs.lookup(ROOT_INO, name)).ino)
        await self._replace(fs, name, dice.randbytes(80 * KIB))
        for _ in range(5):
            await asyncio.sleep(0)
        half = len(expected) // 2
        found = await snapshot.read(0, half) + await snapshot.read(half, len(expected))
        assert found == expected
        await snapshot.close()

    async def _die(self, seed: int) -> None:
        """A session that has stored blocks and committed some of them ends without a word."""
        fs = await Filesystem.connect(self.config)
        name = b"dead%d" % (seed % 3)
        data = random.Random(seed).randbytes(90 * KIB)
        await self._replace(fs, name, data)
        stores = fs.stores
        lost = await stores.meta.reserve_slices(2)
        for number in range(2):
            key = block_key(stores.prefix, type(lost)(lost + number), 0)
            await stores.blocks.put(key, b"lost" * KIB)
        await self.keeper.stores.meta.fence(stores.meta.session, force=True)  # type: ignore[attr-defined]  # of the real store
        await fs.close()

    async def _read(self, fs: Filesystem, name: bytes) -> bytes:
        handle = await fs.open((await fs.lookup(ROOT_INO, name)).ino, os.O_RDONLY)
        try:
            return await handle.read(0, 4 * MIB)
        finally:
            await handle.close()

    # -- what must be left --

    async def shown(self) -> set[str]:
        """Keys of the objects that some file shows, the trash included."""
        conn = await asyncpg.connect(self.config.meta_dsn)
        try:
            rows = await conn.fetch("SELECT DISTINCT slice_id, size FROM slice WHERE NOT is_inline")
        finally:
            await conn.close()
        prefix = self.config.store.prefix
        return {
            block_key(prefix, slice_id, index)
            for slice_id, size in rows
            for index in range(block_count(size))
        }

    def stored(self) -> set[str]:
        """Keys of all objects below the volume's prefix."""
        store = self.config.store
        client = boto3.client(
            "s3",
            endpoint_url=store.endpoint,
            region_name=store.region,
            aws_access_key_id=store.access_key,
            aws_secret_access_key=store.secret_key,
        )
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=store.bucket, Prefix=store.prefix + "/"
        )
        found = {item["Key"] for page in pages for item in page.get("Contents", ())}
        client.close()
        return found

    async def settle(self) -> None:
        """Collects until the store holds what files show, and nothing else."""
        end = time.monotonic() + DEADLINE
        while True:
            await gc.collect(self.keeper, grace=NOW)
            shown, stored = await self.shown(), self.stored()
            assert shown <= stored, f"live objects are gone: {sorted(shown - stored)}"
            if shown == stored:
                return
            assert time.monotonic() < end, f"left behind: {sorted(stored - shown)}"
            await asyncio.sleep(0.1)


@pytest.mark.figure("RA-7")
@pytest.mark.timeout(600)
def test_no_live_block_goes_and_no_dead_one_stays(volume: VolumeConfig, figures: Figures) -> None:
    async def rounds() -> None:
        world = World(volume)
        await world.open()
        try:
            for number in figures(ci=50, long=1000):
                await world.round(number)
                if number % 25 == 24:
                    await world.settle()
            await world.settle()
            await trash.empty(world.keeper)
            await world.settle()
        finally:
            await world.close()

    run(rounds())


def test_a_store_that_refuses_ends_the_round_and_the_next_goes_on(volume: VolumeConfig) -> None:
    async def body() -> None:
        world = World(volume)
        await world.open()
        try:
            await world._replace(world.keeper, b"f", bytes(100 * KIB))
            await world.keeper.unlink(ROOT_INO, b"f")
            await trash.empty(world.keeper)
            delete = world.keeper.stores.blocks.delete
            await _until_garbage(world.keeper)

            async def refuse(keys: object) -> None:
                raise StorageError("the store refuses to delete")

            world.keeper.stores.blocks.delete = refuse  # type: ignore[method-assign]  # a fault
            with pytest.raises(StorageError):
                await gc.collect(world.keeper, grace=NOW)
            world.keeper.stores.blocks.delete = delete  # type: ignore[method-assign]  # mended
            assert len(world.stored()) == 1
            await world.settle()
            assert world.stored() == set()
        finally:
            await world.close()

    run(body())


def test_a_reader_follows_files_that_are_compacted_under_it(volume: VolumeConfig) -> None:
    """A layout that is known keeps its version: it is fetched anew when its objects are gone."""

    async def body() -> None:
        world = World(volume)
        await world.open()
        try:
            ino = await _scatter(world.writers[0])
            reader = await world.writers[1].open(ino, os.O_RDONLY)
            expected = await reader.read(0, 8 * MIB)
            assert await compact.compact_file(world.keeper, ino, refs=16) > 0
            await world.settle()
            fresh = await Filesystem.connect(volume)
            reopened = await fresh.open(ino, os.O_RDONLY)
            assert await reopened.read(0, 8 * MIB) == expected
            assert await reader.read(0, 8 * MIB) == expected
            await reader.close()
            await reopened.close()
            await fresh.close()
        finally:
            await world.close()

    run(body())


def test_a_compactor_that_was_frozen_puts_nothing_in_the_place_of_refs(
    volume: VolumeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it wakes its session is gone, and so are the objects of its copy."""

    async def body() -> None:
        world = World(volume)
        await world.open()
        frozen, keeper = world.writers[0], world.keeper
        put = frozen.stores.blocks.put

        async def freeze(key: str, data: BytesLike) -> None:
            monkeypatch.setattr(frozen.stores.blocks, "put", put)
            await put(key, data)
            assert isinstance(keeper.stores.meta, PostgresMeta)
            await keeper.stores.meta.fence(frozen.stores.meta.session, force=True)
            end = time.monotonic() + DEADLINE
            while key in world.stored():
                assert time.monotonic() < end
                await gc.collect(keeper, grace=NOW)
            await frozen.mkdir(ROOT_INO, b"awake", 0o755, ME)

        try:
            ino = await _scatter(frozen)
            expected = await world._read(keeper, b"pages")
            monkeypatch.setattr(frozen.stores.blocks, "put", freeze)
            with pytest.raises(Fenced):
                await compact.compact_file(frozen, ino, refs=16)
            assert await world._read(keeper, b"pages") == expected
            await world.settle()
            assert await compact.compact_file(frozen, ino, refs=16) > 0
            await world.settle()
            assert await world._read(keeper, b"pages") == expected
        finally:
            await world.close()

    run(body())


async def _scatter(fs: Filesystem) -> Ino:
    handle = (await fs.create(ROOT_INO, b"pages", 0o644, os.O_RDWR, ME))[1]
    for number in range(24):
        await handle.write((number * 7 % 24) * 70 * KIB, bytes([number]) * 70 * KIB)
        await handle.flush()
    await handle.close()
    return handle.ino


async def _until_garbage(fs: Filesystem) -> None:
    end = time.monotonic() + DEADLINE
    while not await fs.stores.upkeep.garbage(NOW, 10):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
