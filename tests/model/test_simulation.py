"""CR-8: seeded histories of sessions on far stores that fail, and of processes that die.

A history that fails prints its seed; `python -m pytest ... --long` goes on with new ones. A seed
that found something stays in `FOUND`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_volume import MemoryVolume
from tests.harness.simulation.crashing import Died
from tests.harness.simulation.sessions import Client, Weather
from tests.harness.simulation.virtual_loop import VirtualLoop
from tests.model.simulated_files import HUGE, ME, SIZES, Cells, Log, Names, Open
from wrkfs.errors import WrkfsError
from wrkfs.types import ROOT_INO
from wrkfs.upkeep.compact import compact_all
from wrkfs.upkeep.gc import collect

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.plugins.figures import Figures
    from wrkfs.fs import Filesystem

FOUND: tuple[int, ...] = ()
STEPS = 20
"""Calls of one job."""


class History:
    """One seed: two sessions, one of which may die, and a third that looks at what is left."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.chance = loop.random
        self.volume = MemoryVolume()
        self.blocks = MemoryBlocks()
        self.weather = Weather(self.chance)
        self.calm = self.weather.calm
        self.clients = [Client(self.volume, self.blocks, self.weather) for _ in range(2)]
        self.log = Log(b"log")
        self.files = [Cells(b"cells %d" % n, self._sizes()) for n in range(len(self.clients))]
        self.names = [Names(b"name %d " % n) for n in range(len(self.clients))]

    def _sizes(self) -> list[int]:
        sizes = [self.chance.choice(SIZES) for _ in range(self.chance.randrange(1, 6))]
        if self.chance.random() < 0.06:
            sizes.append(HUGE)
        return sizes

    async def run(self) -> None:
        """The history."""
        for client in self.clients:
            await client.start()
        jobs = []
        for number, client in enumerate(self.clients):
            jobs.append(self.write_cells(client, self.files[number]))
            jobs.append(self.append(client))
            jobs.append(self.change_names(number))
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(survived(job))
            if self.chance.random() < 0.5:
                group.create_task(self.kill(self.clients[0]))
            if self.chance.random() < 0.3:
                group.create_task(survived(self.compact(self.clients[1])))
        self.weather.over = True
        for client in self.clients:
            if not client.dead:
                await ended(client)
        await self.look()

    async def look(self) -> None:
        """A session of a new process finds what was promised."""
        client = Client(self.volume, self.blocks, self.weather)
        await client.start()
        await self.check(client.fs)
        await collect(client.fs, grace=timedelta(0))
        await compact_all(client.fs, refs=2)
        await self.check(client.fs)
        await client.fs.close()
        assert not self.volume.sustained, "somebody gone holds files"
        used = self.volume.used_slices() | set(self.volume.freed_slices)
        leaked = [key for key in self.blocks.objects if int(key.split("/")[1]) not in used]
        assert not leaked, f"objects that nobody knows: {leaked}"

    async def check(self, fs: Filesystem) -> None:
        """All that was promised."""
        for file in self.files:
            await file.check(fs)
        for names in self.names:
            await names.check(fs)
        await self.log.check(fs)

    async def kill(self, client: Client) -> None:
        """The process ends at any moment."""
        await asyncio.sleep(self.chance.choice((0.2, 2.0, 70.0)) * self.chance.random())
        client.die()

    async def compact(self, client: Client) -> None:
        """Joins what was written in pieces, while it is written."""
        for _ in range(3):
            await asyncio.sleep(self.chance.random())
            with contextlib.suppress(WrkfsError):
                await compact_all(client.fs, refs=2)

    # -- jobs --

    async def open(self, client: Client, name: bytes, flags: int) -> Open:
        """Opens or creates, until it works."""
        while True:
            try:
                _, handle = await client.fs.create(ROOT_INO, name, 0o600, flags, ME)
            except WrkfsError:
                continue
            return Open(handle, 0)

    async def write_cells(self, client: Client, file: Cells) -> None:
        """Writes, reads, truncates and makes safe through two handles."""
        handles = [await self.open(client, file.name, os.O_RDWR) for _ in range(2)]
        for _ in range(STEPS):
            place = self.chance.randrange(2)
            opened = handles[place]
            verb = self.chance.choice(("write",) * 5 + ("read",) * 2 + ("cut", "fsync", "reopen"))
            cell = self.chance.randrange(len(file.sizes))
            try:
                if verb == "write":
                    count = self.chance.choice((1, 1, 3))
                    await self.weather.patience(file.write(opened, cell, count))
                elif verb == "read":
                    found = await file.read(opened.handle, cell)
                    assert found in file.possible[cell], f"{found} not of {file.possible[cell]}"
                    assert not self.calm or found == file.last[cell]
                elif verb == "cut":
                    await self.weather.patience(file.cut(client.fs, opened, cell))
                elif verb == "fsync":
                    await self.weather.patience(file.make_safe(opened, close=False))
                else:
                    await file.make_safe(opened, close=True)
                    handles[place] = await self.open(client, file.name, os.O_RDWR)
                    handles[place].clean_since = file.writes
                await asyncio.sleep(self.chance.choice((0, 0, 0.05, 0.2)))
            except (WrkfsError, TimeoutError):
                assert not self.calm
        for opened in handles:
            await file.make_safe(opened, close=True)
        assert not self.calm or not file.losses

    async def append(self, client: Client) -> None:
        """Appends records, and makes them safe now and then."""
        opened = await self.open(client, self.log.name, os.O_WRONLY | os.O_APPEND)
        waiting: set[int] = set()
        for _ in range(STEPS // 2):
            try:
                waiting.add(await self.log.append(opened, self.chance))
                if self.chance.random() < 0.3:
                    await opened.handle.fsync()
                    self.log.required |= waiting
                    waiting = set()
                await asyncio.sleep(self.chance.choice((0, 0.01, 0.2)))
            except WrkfsError:
                waiting = set()
        try:
            await opened.handle.close()
        except WrkfsError:
            return
        self.log.required |= waiting

    async def change_names(self, number: int) -> None:
        """Changes names; the other session sees each at once."""
        client, other = self.clients[number], self.clients[1 - number]
        names = self.names[number]
        for _ in range(STEPS // 2):
            try:
                name = await names.step(client.fs, self.chance)
                if other.dead or client.dead:
                    continue
                seen = True
                try:
                    await other.fs.lookup(ROOT_INO, name)
                except Died:
                    continue
                except WrkfsError as error:
                    seen = False if error.errno == 2 else bool(names.there[name])
                assert names.there[name] in (None, seen), f"{name!r} is not seen at once"
            except WrkfsError:
                assert not self.calm


async def ended(client: Client) -> None:
    """An orderly end; losses have been told or are told now."""
    try:
        await client.fs.close()
    except WrkfsError:
        return


async def survived(job: Coroutine[object, object, None]) -> None:
    """The job, or its part before the death of its process."""
    try:
        await job
    except Died:
        return


def play(seed: int) -> None:
    """One history."""
    loop = VirtualLoop(seed)
    try:
        loop.run(History(loop).run())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    complaints = [line for line in loop.complaints if "Died" not in line]
    assert not complaints, f"seed {seed}: {complaints}"


@pytest.mark.promise("D1")
@pytest.mark.promise("D2")
@pytest.mark.promise("D4")
@pytest.mark.figure("CR-8")
@pytest.mark.timeout(300)
def test_histories(figures: Figures) -> None:
    for seed in FOUND:
        play(seed)
    for seed in figures(ci=2000, long=1_000_000):
        play(seed)
