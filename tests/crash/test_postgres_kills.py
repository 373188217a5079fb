"""PostgreSQL dies under load: what was acknowledged is there, what is lost was told."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.doubles.block_store import MemoryBlocks
from tests.harness.logs import provoked
from wrkfs.errors import NotFound, StorageError
from wrkfs.fs import Filesystem
from wrkfs.meta.postgres.store import PostgresMeta
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.servers.cluster import Cluster
    from tests.plugins.figures import Figures
    from wrkfs.config import StoreConfig, VolumeConfig
    from wrkfs.handle import FileHandle

ME = Caller(0, 0)
RECORD = 512
"""Bytes of one write; each record has bytes of its own."""


def record(number: int) -> bytes:
    return b"%08d" % number * (RECORD // 8)


class Client:
    """Writes records to one file and makes names, and keeps what was acknowledged.

    A record or name is certain from the fsync that followed it, unless that fsync failed: then
    the client writes it again, as a program should. It may be there or not until then.
    """

    def __init__(self, fs: Filesystem, number: int, seed: int) -> None:
        self.name = b"file%d" % number
        self.told = 0
        self.done = 0
        self.certain: set[int] = set()
        self.names: set[bytes] = set()
        self._fs = fs
        self._chance = random.Random(seed)
        self._handle: FileHandle | None = None
        self._next = 0
        self._stop = False

    async def run(self) -> None:
        """Until `stop`, and then to the end of the step at hand."""
        _, self._handle = await self._fs.create(ROOT_INO, self.name, 0o600, os.O_RDWR, ME)
        await self._until_durable(set())
        while not self._stop:
            fresh = set()
            for _ in range(self._chance.randrange(1, 5)):
                fresh.add(self._next)
                await self._handle.write(self._next * RECORD, record(self._next))
                self._next += 1
                if self._chance.random() < 0.3:
                    await asyncio.sleep(self._chance.uniform(0, 0.15))
            await self._until_durable(fresh)
            await self._make_name()
            self.done += 1
        try:
            await self._handle.close()
        except StorageError:
            self.told += 1

    def stop(self) -> None:
        """Ends `run`."""
        self._stop = True

    async def check(self, fs: Filesystem) -> None:
        """What another session sees, at any time after `run`."""
        attr = await fs.lookup(ROOT_INO, self.name)
        handle = await fs.open(attr.ino, os.O_RDONLY)
        found = await handle.read(0, attr.size)
        await handle.close()
        for number in range(self._next):
            piece = found[number * RECORD : (number + 1) * RECORD]
            if number in self.certain:
                assert piece == record(number), number
            else:
                assert piece in (b"", bytes(len(piece)), record(number)), number
        for name in self.names:
            assert (await fs.lookup(ROOT_INO, name)).is_dir

    async def _until_durable(self, fresh: set[int]) -> None:
        handle = self._handle
        assert handle is not None
        while True:
            try:
                await handle.fsync()
            except StorageError:
                self.told += 1
                for number in fresh:
                    await handle.write(number * RECORD, record(number))
            else:
                self.certain |= fresh
                return

    async def _make_name(self) -> None:
        """A directory, made durable as fsync of its parent does; again if it was lost."""
        name = self.name + b".%d" % self.done
        since = self._fs.losses
        await self._fs.mkdir(ROOT_INO, name, 0o755, ME)
        try:
            await self._fs.sync_names(since)
        except StorageError:
            self.told += 1
            try:
                await self._fs.lookup(ROOT_INO, name)
            except NotFound:
                return
            await self._fs.sync_names()
        self.names.add(name)


WAYS: dict[str, Callable[[Cluster, VolumeConfig], None]] = {
    "backend": lambda cluster, volume: cluster.kill_a_backend(volume.schema),
    "immediate stop": lambda cluster, _: cluster.stop_immediately(),
    "postmaster": lambda cluster, _: cluster.kill_postmaster(),
    "power": lambda cluster, _: cluster.kill(),
}


@pytest.mark.promise("D1")
@pytest.mark.figure("CR-3")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.timeout(240)
async def test_what_was_acknowledged_survives(
    cluster: Cluster, no_store: StoreConfig, figures: Figures, way: str
) -> None:
    volume = cluster.volume(no_store)
    told = 0
    for number in figures(ci=5 if way == "power" else 10, long=1000):
        chance = random.Random(number)
        meta = PostgresMeta(volume)
        await meta.start()
        fs = Filesystem(meta, MemoryBlocks())
        clients = [Client(fs, which, number * 100 + which) for which in range(3)]
        with provoked("wrkfs.meta.postgres.sessions"):
            running = [asyncio.create_task(client.run()) for client in clients]
            await _steps(clients, running, 1)
            # Only SIGKILL to all ends a process that is stopped.
            if way == "power":
                await asyncio.to_thread(cluster.hold_back)
            await asyncio.sleep(chance.uniform(0, 0.2))
            await asyncio.to_thread(WAYS[way], cluster, volume)
            await asyncio.to_thread(cluster.start)
            await _steps(clients, running, 2)
            for client in clients:
                client.stop()
            await asyncio.gather(*running)
        told += sum(client.told for client in clients)
        reader = PostgresMeta(volume)
        await reader.start()
        seen = Filesystem(reader, MemoryBlocks())
        for client in clients:
            await client.check(seen)
        for entry in await seen.readdir(ROOT_INO, 0, 100_000):
            await seen.remove_tree(ROOT_INO, entry.name)
        await seen.close()
        await fs.close()
    print(f"{way}: losses told {told} times")


async def _steps(clients: list[Client], running: list[asyncio.Task[None]], count: int) -> None:
    """Until each client has made so many more steps."""
    goals = [client.done + count for client in clients]
    async with asyncio.timeout(50):
        while any(client.done < goal for client, goal in zip(clients, goals, strict=True)):
            for task in running:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)
