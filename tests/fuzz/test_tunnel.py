"""The daemon outlives agents that talk nonsense, and what uses their boxes hears a reason."""

from __future__ import annotations

import asyncio
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from box_guest import protocol
from boxd.errors import BoxdError, Unavailable
from tests.fuzz.agent import run_agent
from tests.harness.agents.agent import LocalBox, local_agent
from tests.harness.agents.impostor import GREETING, agent_with, host_key
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugins.figures import Figures
    from tests.plugins.strict_logs import AssertLogs

BOXES = 10
"""At once; each has one agent after the other."""


@pytest.mark.timeout(300)
@pytest.mark.figure("FZ-2")
async def test_nonsense_of_agents(figures: Figures, assert_logs: AssertLogs) -> None:
    tasks = len(asyncio.all_tasks())
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(local_agent()) for _ in range(BOXES)]
        pool = stack.enter_context(ThreadPoolExecutor(BOXES))
        seeds = figures(ci=1000, long=100_000)
        with assert_logs("agent misbehaved: "):
            async with asyncio.TaskGroup() as group:
                for box in boxes:
                    group.create_task(agents_of(box, seeds, pool))
        # The same box with a well-behaved agent.
        await boxes[0].open()
        await boxes[0].start()
        assert (await boxes[0].run("echo better")).stdout == b"better\n"
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    # asyncio's own loop, unlike the service's, forgets what it accepts while its server closes.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


async def test_a_yes_that_cannot_be_read_is_a_no() -> None:
    """With more in it than there is room for, the daemon's own code failed at it."""
    async with (
        local_agent() as box,
        agent_with(box, host_key(box), [GREETING]) as (connection, _),
    ):
        tunnel = await box.tunnel()
        confirm = connection.send_channel_open_confirmation
        vars(connection)["send_channel_open_confirmation"] = lambda *words: confirm(*words, b"x")
        with pytest.raises(Unavailable, match="Unexpected data at end of packet"):
            await tunnel.start("true")


async def agents_of(box: LocalBox, seeds: Iterator[int], pool: ThreadPoolExecutor) -> None:
    """One agent after the other, for each seed that is left."""
    key = load_ssh_private_key(host_key(box), None)
    assert isinstance(key, Ed25519PrivateKey)
    loop = asyncio.get_running_loop()
    for seed in seeds:
        # Begun anew: it is not paused for what the one before has done.
        await box.open()
        using = asyncio.create_task(use(box))
        try:
            place = box.run_dir / protocol.TUNNEL_SOCKET
            await loop.run_in_executor(pool, run_agent, place, key, seed)
            await until(lambda: box.registry.peek(box.box_id) is None)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            using.cancel()
            with suppress(asyncio.CancelledError):
                await using


async def use(box: LocalBox) -> None:
    """Somebody whose command runs in the box: told of its end, or why there is none."""
    with suppress(BoxdError):
        await box.run("true", stdin=b"in")
