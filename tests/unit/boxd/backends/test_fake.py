"""What only the fake does."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxd.backends.fake import FakeBackend
from boxd.backends.interface import BoxPlan
from boxd.errors import Conflict, Unavailable

ROOT = Path("/")
PLAN = BoxPlan("aa", "box", ROOT, ROOT, ROOT, 1.0, 64, 10, "all")


async def test_failures_on_demand_change_nothing() -> None:
    backend = FakeBackend()
    await backend.setup()
    backend.fail_next("create", Unavailable("full"))
    with pytest.raises(Unavailable, match="full"):
        await backend.create(PLAN)
    assert await backend.list() == []
    await backend.create(PLAN)
    assert backend.plan("aa") == PLAN


async def test_it_has_to_be_set_up() -> None:
    with pytest.raises(Unavailable, match="not set up"):
        await FakeBackend().create(PLAN)


async def test_drives_and_holders() -> None:
    backend = FakeBackend()
    await backend.setup()
    await backend.create(PLAN)
    await backend.start("aa")
    await backend.attach_drive("aa", ROOT)
    assert backend.drive("aa") == ROOT
    backend.holders["aa"] = "pid 7 (bash)"
    with pytest.raises(Conflict, match="pid 7"):
        await backend.detach_drive("aa")
    del backend.holders["aa"]
    await backend.detach_drive("aa")
    assert backend.drive("aa") is None
    backend.crash("aa")
    assert not (await backend.list())[0].running


async def test_suspending() -> None:
    backend = FakeBackend(suspends=True)
    await backend.setup()
    assert backend.capabilities().suspend
    await backend.create(PLAN)
    await backend.resume("aa")
    assert not (await backend.list())[0].running
    await backend.start("aa")
    await backend.suspend("aa")
    assert not (await backend.list())[0].running
    await backend.resume("aa")
    assert (await backend.list())[0].running
