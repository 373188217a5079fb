"""What only the fake does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from boxd.backends.interface import BackendBox, BoxPlan
from boxd.errors import Conflict, MemoryLost, NotFound, Unavailable
from tests.doubles.backend import FakeBackend

ROOT = Path("/")
PLAN = BoxPlan("aa", "box", "debian", ROOT, ROOT, ROOT, 1.0, 64, 10, "all")


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
    with pytest.raises(MemoryLost):
        await backend.resume("aa", None)
    await backend.start("aa")
    with pytest.raises(Conflict, match="not frozen"):
        await backend.save_memory("aa")
    await backend.freeze("aa")
    await backend.save_memory("aa")
    assert (await backend.list()) == [BackendBox("aa", True, True, True)]
    await backend.stop("aa")
    assert (await backend.list()) == [BackendBox("aa", False, False, True)]
    await backend.resume("aa", Path("/drive"))
    assert (await backend.list()) == [BackendBox("aa", True, False, False)]
    assert backend.drive("aa") == Path("/drive")
    assert backend.resumes("aa") == 1


async def test_memory_that_is_lost_is_used_up() -> None:
    backend = FakeBackend(suspends=True)
    await backend.setup()
    await backend.create(PLAN)
    await backend.start("aa")
    await backend.freeze("aa")
    await backend.save_memory("aa")
    await backend.stop("aa")
    backend.lost.add("aa")
    with pytest.raises(MemoryLost):
        await backend.resume("aa", None)
    assert (await backend.list()) == [BackendBox("aa", False, False, False)]
    await backend.start("aa")
    assert (await backend.list())[0].running


async def test_snapshots_and_clones() -> None:
    backend = FakeBackend(suspends=True)
    await backend.setup()
    await backend.create(PLAN)
    await backend.start("aa")
    with pytest.raises(Conflict, match="runs"):
        await backend.snapshot("aa", "s1")
    await backend.freeze("aa")
    await backend.snapshot("aa", "s1")
    await backend.thaw("aa")
    assert await backend.snapshots() == ("s1",)
    child = replace(PLAN, box_id="bb")
    await backend.clone(child, "s1")
    await backend.resume("bb", None)
    await backend.stop("aa")
    await backend.restore_snapshot("aa", "s1")
    assert [one.memory for one in await backend.list()] == [True, False]
    await backend.drop_snapshot("s1")
    assert await backend.snapshots() == ()
    with pytest.raises(NotFound):
        await backend.clone(replace(PLAN, box_id="cc"), "s1")
