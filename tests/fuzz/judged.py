"""What a front door must be like after all the nonsense: as before."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd.ssh.connection.forward import FLUSH_S
from tests.fuzz.harmless import BOX
from tests.fuzz.rounds import in_a_box, run_rounds
from tests.harness.ssh.door_process import door_process
from tests.harness.wait import DEADLINE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.fuzz.rounds import Round
    from tests.harness.ssh.door_process import Door, Use

BLOCK = 500
UNCOUNTED = 1 << 32
"""The first of the seeds for warming up."""
WARM = 500
LOOK_S = 0.3
LEAVE_S = 2 * FLUSH_S
"""In which everybody has gone, and the boxes have let go."""
GROWTH = 8 << 20
"""Bytes that a process may take more than after the first rounds."""
OFFENCES = ("Traceback", "ERROR", "CRITICAL", "never retrieved", "never awaited")


class Judge:
    """Runs connections against a door, and looks at it before and after."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._before: Use

    async def warm_up(self, *kinds: Round) -> None:
        """Has it load and keep what a door keeps that is open: the box, and connections that no
        figure counts."""
        await self._rounds(in_a_box, range(UNCOUNTED, UNCOUNTED + 1))
        for kind in kinds:
            await self._rounds(kind, range(UNCOUNTED, UNCOUNTED + WARM))
        self._before = await self._settled()

    async def run(self, kind: Round, seeds: Iterable[int]) -> None:
        """A connection for each seed."""
        rest = iter(seeds)
        while block := list(itertools.islice(rest, BLOCK)):
            await self._rounds(kind, block)

    async def judge(self) -> None:
        """Fails unless the door is as it was, has not complained, and serves people."""
        after = await self._left()
        changes = f"before {self._before}, after {after}"
        assert after.rss - self._before.rss <= GROWTH, changes
        assert after.descriptors <= self._before.descriptors, changes
        assert after.tasks <= self._before.tasks, changes
        errors = self._door.errors.read_text()
        assert not [word for word in OFFENCES if word in errors], errors[-5000:]
        client = self._door.client
        assert (await client.run("cli", "ls")).status == 0
        echoed = await client.run(BOX, "cat", stdin=b"still here")
        assert (echoed.status, echoed.stdout) == (0, b"still here"), echoed

    async def _rounds(self, kind: Round, seeds: Iterable[int]) -> None:
        failed = await run_rounds(kind, seeds, self._door.client.port)
        assert not failed, f"{kind.__name__}: {failed}"

    async def _settled(self) -> Use:
        """Return the resources in use, once they no longer change."""
        async with asyncio.timeout(DEADLINE):
            seen = await self._door.use()
            while True:
                await asyncio.sleep(LOOK_S)
                now = await self._door.use()
                if (now.descriptors, now.tasks) == (seen.descriptors, seen.tasks):
                    return now
                seen = now

    async def _left(self) -> Use:
        """What it uses when that is as little as before; if it never is, what it uses at last."""
        before, end = self._before, asyncio.get_running_loop().time() + LEAVE_S
        while True:
            now = await self._door.use()
            late = asyncio.get_running_loop().time() > end
            if late or (now.descriptors <= before.descriptors and now.tasks <= before.tasks):
                return now
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def judged_door(*kinds: Round) -> AsyncIterator[Judge]:
    """A door in a process of its own, with one box, before and after connections."""
    async with door_process() as door:
        judge = Judge(door)
        await judge.warm_up(*kinds)
        yield judge
        await judge.judge()
