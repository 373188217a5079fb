"""Sessions on memory stores with a slow network, failing calls and dying processes.

All code runs on a `VirtualLoop`. A seed determines one history: the order of all steps, the
failures and the deaths.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from tests.doubles.meta_store import MemoryMeta
from tests.harness.simulation.crashing import CHANGES, Died
from wrkfs.config import Limits
from wrkfs.errors import Doubtful, StorageError, Unavailable
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.doubles.block_store import MemoryBlocks
    from tests.doubles.meta_volume import MemoryVolume
    from tests.harness.simulation.crashing import Method
    from wrkfs.data.interface import BlockStore
    from wrkfs.meta.interface.store import MetaStore

SLOWEST = 0.15
"""Seconds of one direction of a call; the background commit follows after 0.1."""
OUTAGE = 60.0
"""Seconds until a call to an absent store fails."""


class Weather:
    """The possible failures, with their probability for one call."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance
        self.calm = calm = chance.random() < 0.3
        self.fail = 0.0 if calm else chance.choice((0.0, 0.01, 0.05))
        self.fence = 0.0 if calm else chance.choice((0.0, 0.005))
        self.impatience = 0.0 if calm else chance.choice((0.0, 0.05))
        self.dirty = chance.choice((100_000, 1_000_000, Limits().dirty))
        self.over = False

    async def way(self) -> None:
        """Wait for one direction of a call."""
        await asyncio.sleep(self._random.choice((0.0, 0.001, SLOWEST)) * self._random.random())

    async def patience(self, call: Awaitable[None]) -> None:
        """Make a call with a timeout of its caller. Raises TimeoutError."""
        if self.hits(self.impatience):
            async with asyncio.timeout(self._random.random() * SLOWEST):
                await call
        else:
            await call

    def coin(self) -> bool:
        """Return True or False with equal probability."""
        return self._random.random() < 0.5

    def hits(self, likelihood: float) -> bool:
        """Return whether a failure happens now; never after the end of the weather."""
        return not self.over and self._random.random() < likelihood


class FarStore:
    """A store behind a network. Its calls may fail before or after their effect.

    After `client.dead` they raise Died at any point, and no effect follows.
    """

    def __init__(self, inner: object, client: Client, methods: frozenset[str]) -> None:
        self._inner = inner
        self._client = client
        self._methods = methods

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found) or name in ("start", "close"):
            return found
        method = cast("Method", found)

        async def far(*args: object, **named: object) -> object:
            client, weather = self._client, self._client.weather
            await client.passes(weather.way)
            changes = name in self._methods
            if changes and weather.hits(weather.fence):
                client.fence()
            if weather.hits(weather.fail):
                await client.passes(outage)
                raise Unavailable("nobody answers")
            answer = await method(*args, **named)
            if changes and weather.hits(weather.fail):
                await client.passes(outage)
                raise weather_error(client, name)
            await client.passes(weather.way)
            return answer

        return far


async def outage() -> None:
    """Wait until a call fails for lack of an answer."""
    await asyncio.sleep(OUTAGE)


def weather_error(client: Client, name: str) -> StorageError:
    """Return the error of an applied call whose answer was lost."""
    if name != "put" and client.coin():
        return Doubtful("the answer was lost")
    return Unavailable("the answer was lost")


class Client:
    """One process with one session: a Filesystem whose stores are far."""

    def __init__(self, volume: MemoryVolume, blocks: MemoryBlocks, weather: Weather) -> None:
        self.weather = weather
        self.dead = False
        self.fences = 0
        self._volume = volume
        self._meta = MemoryMeta(volume)
        self._blocks = blocks.attach()
        self.fs: Filesystem

    async def start(self) -> None:
        """Register without failures."""
        await self._meta.start()
        self.fs = Filesystem(
            cast("MetaStore", FarStore(self._meta, self, CHANGES)),
            cast("BlockStore", FarStore(self._blocks, self, frozenset({"put", "delete"}))),
            limits=Limits(dirty=self.weather.dirty),
        )

    def die(self) -> None:
        """Send SIGKILL; the database notices."""
        self.dead = True
        self._volume.end(self._meta.session)

    def fence(self) -> None:
        """Fence this session from another one."""
        self.fences += 1
        self._volume.end(self._meta.session)

    def coin(self) -> bool:
        """Return True or False with equal probability."""
        return self.weather.coin()

    async def passes(self, way: Callable[[], Awaitable[None]]) -> None:
        """Wait for one direction; a dead client does not see its end."""
        if not self.dead:
            await way()
        if self.dead:
            raise Died
