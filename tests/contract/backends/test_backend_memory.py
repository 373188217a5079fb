"""What every backend that keeps memory does alike: over `runc` with real boxes, over the fake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.backends.interface import BackendBox
from boxd.errors import Conflict, MemoryLost, NotFound
from tests.doubles.backend import FakeBackend
from tests.harness.boxes.backend import open_box_host
from tests.harness.boxes.subject import Subject
from tests.harness.boxes.suspending import judging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.backends.checkpoint import criu

pytestmark = pytest.mark.timeout(180)


@pytest_asyncio.fixture(params=["runc", "fake"])
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path, image_rootfs: Path
) -> AsyncIterator[Subject]:
    """The backends in turn."""
    if request.param == "runc":
        verdict: criu.Verdict = request.getfixturevalue("verdict")
        state = tmp_path / "state"
        async with open_box_host(state, image_rootfs, judge=judging(verdict)) as host:
            yield Subject(host.backend, host, tmp_path)
        return
    backend = FakeBackend(suspends=True)
    await backend.setup()
    yield Subject(backend, None, tmp_path)
    await backend.close()


async def started(subject: Subject) -> str:
    """The id of a box that runs."""
    plan = subject.plan()
    await subject.backend.create(plan)
    await subject.backend.start(plan.box_id)
    return plan.box_id


async def asleep(subject: Subject) -> str:
    """The id of a box that is stopped and has its memory."""
    box = await started(subject)
    await subject.backend.freeze(box)
    await subject.backend.save_memory(box)
    await subject.backend.stop(box)
    return box


async def test_it_says_so(subject: Subject) -> None:
    can = subject.backend.capabilities()
    assert can.suspend
    assert can.why_no_suspend == ""


async def test_each_step_shows(subject: Subject) -> None:
    backend, box = subject.backend, await started(subject)
    await backend.freeze(box)
    assert await backend.list() == [BackendBox(box, running=True, frozen=True)]
    await backend.save_memory(box)
    assert await backend.list() == [BackendBox(box, running=True, frozen=True, memory=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False, memory=True)]
    await backend.resume(box, None)
    assert await backend.list() == [BackendBox(box, running=True)]
    await backend.destroy(box)
    assert subject.leftovers() == []


async def test_every_step_can_be_repeated(subject: Subject) -> None:
    backend, box = subject.backend, await started(subject)
    for step in (backend.freeze, backend.save_memory, backend.stop):
        for _ in range(2):
            await step(box)
    for _ in range(2):
        await backend.resume(box, None)
    for _ in range(2):
        await backend.thaw(box)
    assert await backend.list() == [BackendBox(box, running=True)]


async def test_a_suspension_can_be_undone(subject: Subject) -> None:
    backend, box = subject.backend, await started(subject)
    await backend.freeze(box)
    await backend.save_memory(box)
    await backend.thaw(box)
    assert await backend.list() == [BackendBox(box, running=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False)]


async def test_memory_is_used_once(subject: Subject) -> None:
    backend, box = subject.backend, await asleep(subject)
    await backend.resume(box, None)
    await backend.stop(box)
    with pytest.raises(MemoryLost):
        await backend.resume(box, None)
    assert await backend.list() == [BackendBox(box, running=False)]
    await backend.start(box)
    assert await backend.list() == [BackendBox(box, running=True)]


async def test_a_start_gives_memory_up(subject: Subject) -> None:
    backend, box = subject.backend, await asleep(subject)
    await backend.start(box)
    assert await backend.list() == [BackendBox(box, running=True)]
    await backend.stop(box)
    assert await backend.list() == [BackendBox(box, running=False)]


async def test_memory_can_be_discarded(subject: Subject) -> None:
    backend, box = subject.backend, await asleep(subject)
    for _ in range(2):
        await backend.discard_memory(box)
    assert await backend.list() == [BackendBox(box, running=False)]


async def test_a_frozen_box_ends(subject: Subject) -> None:
    backend, box, other = subject.backend, await started(subject), await started(subject)
    for one in (box, other):
        await backend.freeze(one)
    await backend.stop(box)
    await backend.destroy(other)
    assert await backend.list() == [BackendBox(box, running=False)]


async def test_what_makes_no_sense_is_refused(subject: Subject) -> None:
    backend, box = subject.backend, await started(subject)
    with pytest.raises(Conflict, match="not frozen"):
        await backend.save_memory(box)
    await backend.stop(box)
    for step in (backend.freeze, backend.save_memory, backend.thaw):
        with pytest.raises(Conflict):
            await step(box)
    sleeping = await asleep(subject)
    with pytest.raises(Conflict, match="is not running"):
        await backend.thaw(sleeping)
    await backend.resume(sleeping, None)
    for step in (backend.freeze, backend.save_memory, backend.thaw, backend.discard_memory):
        with pytest.raises(NotFound):
            await step("f" * 32)
