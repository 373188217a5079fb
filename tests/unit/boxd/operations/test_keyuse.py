"""When the last use of an API key is written."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tests.harness.world import ALICE

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.world import World


async def test_last_use_is_written_at_most_once_a_minute(world: World, ops: Operations) -> None:
    _, secret = await ops.create_key(ALICE, "laptop", scope=None, ttl=None)

    async def use(after: timedelta) -> object:
        world.clock.turn(after)
        await ops.principal_of_key(secret.reveal())
        await ops.close()
        return (await ops.list_keys(ALICE))[0].last_used

    first = await use(timedelta(0))
    assert first == world.clock.now()
    assert await use(timedelta(seconds=59)) == first
    assert await use(timedelta(seconds=1)) == world.clock.now()
