"""Boxes go to the disk with their memory and run on from it: real runc, real CRIU."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from boxd.backends.interface import BackendBox

if TYPE_CHECKING:
    from tests.harness.suspending import Sleepy

pytestmark = pytest.mark.timeout(300)


async def test_memory_comes_back(sleepy: Sleepy) -> None:
    guest = await sleepy.guest("memory=20")
    backend, box = sleepy.host.backend, guest.box
    before = guest.state()
    await backend.freeze(box)
    still = guest.tick()
    await asyncio.sleep(0.2)
    assert guest.tick() == still
    assert await backend.list() == [BackendBox(box, running=True, frozen=True)]
    await backend.save_memory(box)
    assert guest.tick() == still
    assert await backend.list() == [BackendBox(box, running=True, frozen=True, memory=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False, memory=True)]
    assert [x for x in sleepy.host.leftovers() if not x.startswith("directory")] == []
    await backend.resume(box, None)
    assert await backend.list() == [BackendBox(box, running=True)]
    after = await guest.goes_on(still)
    assert (after["pid"], after["nonce"]) == (before["pid"], before["nonce"])
