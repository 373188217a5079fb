"""While a task is under way nothing writes the memory of its box to a disk; and what it counts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Confidential, Conflict, Unavailable
from boxd.model.delegated import Task
from boxd.observation import UNOBSERVED
from boxd.operations import delegate
from boxd.secret import Secret
from tests.harness.simulation.world import ALICE, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from boxd.boxes.commands.exec import ExecRequest
    from boxd.observation import Observer
    from tests.plugins.strict_logs import AssertLogs


class Waiting:
    """A command that runs until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()
        self.env: dict[str, str] = {}
        self.own: dict[str, Secret] = {}

    @asynccontextmanager
    async def running_with(
        self,
        _tunnel: object,
        request: ExecRequest,
        env: Mapping[str, str],
        own: Mapping[str, Secret],
        _oom: object,
        *,
        observer: Observer,
    ) -> AsyncIterator[Waiting]:
        """In the place of `boxes.handover.running_with`."""
        assert observer is UNOBSERVED
        self.env, self.own = {**env, **request.env}, dict(own)
        yield self

    async def write(self, _data: bytes) -> None:
        """Reads nothing."""

    def write_eof(self) -> None:
        """Reads nothing."""

    async def pump(self, _emit: object) -> int:
        """Says nothing."""
        self.begun.set()
        await self.end.wait()
        return 0


@pytest.fixture
async def sleepy(tmp_path: Path) -> AsyncIterator[World]:
    """Where boxes can be suspended, with an agent."""
    world = World(tmp_path, suspends=True)
    await world.start()
    await world.operations.agents.set_agent(
        ALICE, command="agent", env="TOKEN", output="text", token=Secret("t")
    )
    yield world
    await world.close()


async def test_its_box_is_held_so_that_no_memory_goes_to_a_disk(
    sleepy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, command = sleepy.operations, Waiting()
    monkeypatch.setattr(delegate, "running_with", command.running_with)
    await ops.boxes.up(ALICE, "web")
    work = asyncio.create_task(ops.delegations.delegate(ALICE, Task("x", agent=True, box="web")))
    await command.begun.wait()
    assert (command.env, command.own) == ({}, {"TOKEN": Secret("t")})
    for verb in (
        ops.boxes.suspend(ALICE, "web"),
        ops.snapshots.create_snapshot(ALICE, "web", "s1"),
        ops.snapshots.fork(ALICE, "web", "copy"),
    ):
        with pytest.raises(Conflict, match="delegate"):
            await verb
    command.end.set()
    assert (await work).exit_code == 0
    assert (await ops.boxes.suspend(ALICE, "web")).state == "suspended"


async def test_a_service_that_stops_meanwhile_keeps_no_memory_of_it(
    sleepy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, command = sleepy.operations, Waiting()
    monkeypatch.setattr(delegate, "running_with", command.running_with)
    held, other = await ops.boxes.up(ALICE, "web"), await ops.boxes.up(ALICE, "other")
    work = asyncio.create_task(ops.delegations.delegate(ALICE, Task("x", agent=True, box="web")))
    await command.begun.wait()
    await sleepy.close(stop_boxes=True)
    assert sleepy.backend.memories == [other.id]
    stored = await sleepy.store.box(held.id)
    assert stored is not None
    assert (stored.state, stored.memory) == ("suspended", False)
    command.end.set()
    await work


async def test_a_confidential_box_is_refused(sleepy: World) -> None:
    ops = sleepy.operations
    async with ops.boxes.attach(
        ALICE, BoxAccess("web", kind="spec", why="relay", relay="ssh-ed25519 AAAA")
    ):
        pass
    for task in (Task("x", agent=True, box="web"), Task("x", spec="web")):
        with pytest.raises(Confidential):
            await ops.delegations.delegate(ALICE, task)


async def test_a_token_that_cannot_be_opened_names_the_way_out(
    sleepy: World, assert_logs: AssertLogs
) -> None:
    (sleepy.root / "master.key").unlink()
    await sleepy.restart()
    with assert_logs("was not sealed with"), pytest.raises(Unavailable, match="agent set"):
        await sleepy.operations.delegations.delegate(ALICE, Task("x", agent=True))
    assert await sleepy.operations.boxes.list_boxes(ALICE) == []
