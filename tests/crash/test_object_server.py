"""CR-4: the object server is killed in a PUT, its disk is full, its fsync fails.

What was acknowledged reads back with its SHA-256, now and after another start; what was not is
absent or complete, and absent when the disk refused it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.servers.mortal_server import MortalServer
from wrkfs.data.retry import DEADLINE
from wrkfs.data.s3 import S3Blocks
from wrkfs.errors import Missing, WrkfsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.plugins.figures import Figures
    from wrkfs.config import StoreConfig

MIB = 1024 * 1024
WRITERS = 4
LONGEST = 0.12
"""Seconds of PUTs before the kill."""
SETTLE = 8
"""Rounds after which objects in flight are looked at: for an absent one that takes a while."""
IMPATIENT = 0.3
"""Seconds after which a PUT counts as not acknowledged."""


class Kept:
    """Objects by key, and who was told that they are stored."""

    def __init__(self, config: StoreConfig, seed: int, patience: float = DEADLINE) -> None:
        self.acknowledged: dict[str, tuple[int, str]] = {}
        self.tried: dict[str, bytes] = {}
        self._config = config
        self._blocks = S3Blocks(config, deadline=patience)
        self._reader = S3Blocks(config)
        self._random = random.Random(seed)
        self._number = 0

    async def put(self, size: int) -> None:
        """Stores one object of random bytes. WrkfsError."""
        self._number += 1
        key = f"volume/{self._number}/0"
        data = self._random.randbytes(size)
        self.tried[key] = data
        await self._blocks.put(key, data)
        self.acknowledged[key] = (size, hashlib.sha256(data).hexdigest())
        del self.tried[key]

    async def refused(self, size: int) -> None:
        """An object that the server does not store, however often it is tried for a second."""
        patient, self._blocks = self._blocks, S3Blocks(self._config, deadline=1.0)
        try:
            with pytest.raises(WrkfsError):
                await self.put(size)
        finally:
            await self._blocks.close()
            self._blocks = patient

    async def put_many(self, count: int) -> None:
        """Stores objects of 2 MiB. WrkfsError."""
        for _ in range(count):
            await self.put(2 * MIB)

    async def put_until_killed(self) -> None:
        """One object after the other, until one fails."""
        try:
            while True:
                await self.put(self._random.choice((1000, MIB, 4 * MIB)))
        except WrkfsError:
            return

    async def check(self) -> None:
        """What was acknowledged is there. The last ones are looked at again the next time."""
        for key, (size, digest) in self.acknowledged.items():
            found = await self._reader.get(key, 0, size)
            assert hashlib.sha256(found).hexdigest() == digest, key
        for key in list(self.acknowledged)[:-6]:
            del self.acknowledged[key]

    async def settle(self) -> None:
        """What was not acknowledged is absent or complete."""
        await asyncio.gather(*(self._whole_or_not(*tried) for tried in self.tried.items()))
        self.tried.clear()

    async def _whole_or_not(self, key: str, data: bytes) -> None:
        with contextlib.suppress(Missing):
            assert bytes(await self._reader.get(key, 0, len(data))) == data, f"{key} is torn"

    async def absent(self) -> None:
        """Nothing of what was refused is there."""
        for key in self.tried:
            with pytest.raises(Missing):
                await self._reader.get(key, 0, 1)
        self.tried.clear()

    async def remove(self) -> None:
        """Deletes all that was acknowledged."""
        await self._reader.delete(list(self.acknowledged))
        self.acknowledged.clear()

    async def close(self) -> None:
        """Lets go of connections."""
        await self._blocks.close()
        await self._reader.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where the server keeps its objects."""
    with tempfile.TemporaryDirectory(prefix="boxd-objects-") as name:
        yield Path(name)


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """The same on a disk of 24 MiB."""
    place = directory / "objects"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "none", str(place)]
    subprocess.run(command, check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
async def server(directory: Path) -> AsyncIterator[MortalServer]:
    """A server that runs, with its own directory."""
    made = MortalServer(directory / "objects")
    yield made
    made.end()


@pytest.mark.promise("D1")
@pytest.mark.figure("CR-4")
@pytest.mark.timeout(600)
async def test_what_was_acknowledged_survives_the_server(
    server: MortalServer, figures: Figures
) -> None:
    kept = Kept(await server.prepare(), 0, IMPATIENT)
    chance = random.Random(0)
    try:
        for number in figures(ci=40, long=2000):
            server.start()
            await kept.check()
            if number % SETTLE == 0:
                await kept.settle()
            async with asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(kept.put_until_killed())
                await asyncio.sleep(chance.uniform(0, LONGEST))
                server.end()
        server.start()
        await kept.check()
        await kept.settle()
    finally:
        await kept.close()


@pytest.mark.promise("D1")
async def test_a_full_disk_refuses_and_keeps(small_disk: Path) -> None:
    server = MortalServer(small_disk)
    kept = Kept(await server.prepare(), 1)
    server.start()
    try:
        for _ in range(2):
            with pytest.raises(WrkfsError):
                await kept.put_many(20)
            assert 5 <= len(kept.acknowledged) <= 12
            await kept.absent()
            await kept.check()
            await kept.remove()
        await kept.close()
    finally:
        server.end(signal.SIGTERM)


@pytest.mark.promise("D1")
async def test_what_the_disk_does_not_take_is_not_stored(server: MortalServer) -> None:
    kept = Kept(await server.prepare(), 2)
    server.start()
    await kept.put(MIB)
    with server.no_fsync():
        for size in (1000, MIB, 4 * MIB):
            await kept.refused(size)
        # The last one was given up while the server may have been at it.
        await server.quiet()
    await kept.absent()
    await kept.put(MIB)
    server.end()
    server.start()
    await kept.check()
    assert len(kept.acknowledged) == 2
    await kept.close()
