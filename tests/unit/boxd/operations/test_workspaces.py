"""Workspaces: listed, made, given a profile, and removed with what is in them."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadName, Conflict, Forbidden, InvalidKey, NotFound, QuotaExceeded
from boxd.model.profile import ProfileDefaults
from boxd.model.progress import Progress
from boxd.model.usage import DriveUse
from boxd.secret import Secret
from tests.harness.simulation.turns import wait_turns
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from boxd.operations import Operations
    from boxd.operations.shared.drives import Drives
    from tests.harness.simulation.world import World


class FakeDrives:
    """Drives that hold so many files."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str | None], int] = {}
        self.closed: list[str] = []
        self.used = False
        self.until: datetime | None = None
        """Until when what is removed can come back."""

    async def usage(self, owner: str) -> dict[str | None, DriveUse]:
        """Seven bytes a file."""
        mine = {place[1]: count for place, count in self.files.items() if place[0] == owner}
        return {name: DriveUse(7 * count, 100, count, None) for name, count in mine.items()}

    @contextmanager
    def closing(self, owner: str, workspace: str) -> Iterator[None]:
        """Remembers it."""
        self.closed.append(workspace)
        try:
            yield
        finally:
            self.closed.remove(workspace)

    async def is_empty(self, owner: str, workspace: str) -> bool:
        """No files."""
        return not self.files.get((owner, workspace))

    async def remove(self, owner: str, workspace: str) -> datetime | None:
        """Forgets them."""
        assert self.closed == [workspace]
        if self.used:
            raise Conflict("the drive is in use")
        self.files.pop((owner, workspace), None)
        return self.until


@pytest.fixture
def drives(world: World) -> FakeDrives:
    """The drives of `world`."""
    made = FakeDrives()
    world.use_drives(cast("Drives", made))
    return made


async def test_they_are_listed_with_what_they_hold(drives: FakeDrives, ops: Operations) -> None:
    drives.files = {(ALICE.owner, None): 1, (ALICE.owner, "ws1"): 3, (BOB.owner, "ws1"): 9}
    await ops.boxes.up(ALICE, "web")
    await ops.boxes.up(ALICE, "ws1/web")
    await ops.workspaces.create_workspace(ALICE, "empty")
    views = await ops.workspaces.list_workspaces(ALICE)
    assert [(one.name, one.boxes, one.drive and one.drive.bytes) for one in views] == [
        (None, 1, 7),
        ("empty", 0, None),
        ("ws1", 1, 21),
    ]
    assert [one.name for one in await ops.workspaces.list_workspaces(SCOPED)] == ["ws1"]
    assert [one.name for one in await ops.workspaces.list_workspaces(BOB)] == [None]


async def test_those_that_are_made_at_once_are_counted_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = world.operations
    world.tiers[ALICE.owner] = replace(world.tier, workspaces=3)
    wait_turns(monkeypatch, world.store, "workspaces", "add_workspace")
    made = (ops.workspaces.create_workspace(ALICE, f"ws{number}") for number in range(9))
    await asyncio.gather(*made, return_exceptions=True)
    assert len(await world.store.workspaces(ALICE.owner)) == 3


async def test_making_one_twice_and_too_many_are_refused(world: World) -> None:
    ops = world.operations
    world.tiers[ALICE.owner] = replace(world.tier, workspaces=2)
    assert (await ops.workspaces.create_workspace(ALICE, "One")).name == "one"
    with pytest.raises(Conflict, match="one"):
        await ops.workspaces.create_workspace(ALICE, "one")
    with pytest.raises(BadName):
        await ops.workspaces.create_workspace(ALICE, "no/pe")
    await ops.workspaces.create_workspace(ALICE, "two")
    with pytest.raises(QuotaExceeded, match="2 workspaces"):
        await ops.workspaces.create_workspace(ALICE, "three")
    with pytest.raises(QuotaExceeded, match="ws rm NAME"):
        await ops.boxes.up(ALICE, "three/web")
    with pytest.raises(QuotaExceeded):
        async with ops.boxes.attach(ALICE, BoxAccess("three/web", kind="spec", why="shell")):
            pass
    await ops.boxes.up(ALICE, "two/web")
    assert await world.store.workspaces(ALICE.owner) == ["one", "two"]
    with pytest.raises(Forbidden):
        await ops.workspaces.create_workspace(SCOPED, "other")


async def test_new_boxes_of_a_workspace_are_made_with_its_profile(ops: Operations) -> None:
    await ops.profiles.set_profile(ALICE, "big", "debian", ProfileDefaults(flavor="large"))
    await ops.workspaces.create_workspace(ALICE, "ws1")
    before = await ops.boxes.up(ALICE, "ws1/before")
    view = await ops.workspaces.set_workspace_profile(ALICE, "ws1", "BIG")
    assert view.profile == "big"
    notes: list[str] = []
    assert (await ops.boxes.up(ALICE, "ws1/new", progress=Progress(notes.append))).flavor == "large"
    assert (await ops.boxes.up(ALICE, "ws1/plain:debian")).flavor == "small"
    assert (
        await ops.boxes.up(ALICE, "ws1/before", progress=Progress(notes.append))
    ).flavor == before.flavor
    assert (await ops.boxes.up(ALICE, "elsewhere")).flavor == "small"
    assert not notes
    with pytest.raises(Conflict, match="ws profile ws1 -"):
        await ops.profiles.remove_profile(ALICE, "big")
    assert (await ops.workspaces.set_workspace_profile(ALICE, "ws1", None)).profile is None
    await ops.profiles.remove_profile(ALICE, "big")
    assert (await ops.boxes.up(ALICE, "ws1/newer")).flavor == "small"
    with pytest.raises(NotFound):
        await ops.workspaces.set_workspace_profile(ALICE, "ws1", "big")
    with pytest.raises(NotFound):
        await ops.workspaces.set_workspace_profile(ALICE, "ws2", None)
    with pytest.raises(Forbidden):
        await ops.workspaces.set_workspace_profile(SCOPED, "ws1", None)


async def test_one_with_boxes_snapshots_or_files_is_removed_by_force_alone(
    sleepy: World,
) -> None:
    drives = FakeDrives()
    sleepy.use_drives(cast("Drives", drives))
    ops = sleepy.operations
    drives.files = {(ALICE.owner, "ws1"): 3, (ALICE.owner, "ws2"): 1, (BOB.owner, "ws1"): 9}
    await ops.boxes.up(ALICE, "ws1/web")
    await ops.boxes.up(ALICE, "ws2/web")
    await ops.boxes.up(BOB, "ws1/web")
    await ops.snapshots.create_snapshot(ALICE, "ws1/web", "one")
    with pytest.raises(Conflict) as raised:
        await ops.workspaces.remove_workspace(ALICE, "ws1")
    for word in ("box web", "snapshot web@one", "files on its drive", "ws rm ws1 --force"):
        assert word in str(raised.value)
    assert "ws1" in await sleepy.store.workspaces(ALICE.owner)
    await ops.workspaces.remove_workspace(ALICE, "ws1", force=True)
    left = {(box.owner, box.ref) for box in await sleepy.store.all_boxes()}
    assert left == {(ALICE.owner, "ws2/web"), (BOB.owner, "ws1/web")}
    assert not await sleepy.store.all_snapshots()
    assert drives.files == {(ALICE.owner, "ws2"): 1, (BOB.owner, "ws1"): 9}
    assert await sleepy.store.workspaces(ALICE.owner) == ["ws2"]
    with pytest.raises(NotFound):
        await ops.workspaces.remove_workspace(ALICE, "ws1", force=True)


@pytest.mark.parametrize("what", ["box", "file"])
async def test_each_of_them_alone_is_a_reason(
    drives: FakeDrives, ops: Operations, what: str
) -> None:
    await ops.workspaces.create_workspace(ALICE, "ws1")
    if what == "box":
        await ops.boxes.up(ALICE, "ws1/web")
    else:
        drives.files[ALICE.owner, "ws1"] = 1
    with pytest.raises(Conflict, match="--force"):
        await ops.workspaces.remove_workspace(ALICE, "ws1")
    assert not drives.closed


async def test_secrets_keys_and_questions_of_it_go_with_it(
    world: World, drives: FakeDrives
) -> None:
    ops = world.operations
    await ops.secrets.set_secret(ALICE, "A", Secret("account"), tier="account")
    await ops.secrets.set_secret(ALICE, "A", Secret("ws1"), tier="workspace", ws="ws1")
    _, inside = await ops.keys.create_key(ALICE, "inside", scope="ws1", ttl=None)
    _, whole = await ops.keys.create_key(ALICE, "whole", scope=None, ttl=None)
    await ops.asks.ask(SCOPED, "Go on?")
    stays = await ops.asks.ask(ALICE, "And here?")
    notes: list[str] = []
    await ops.workspaces.remove_workspace(ALICE, "ws1", progress=Progress(notes.append))
    assert [view.ask.id for view in await ops.asks.list_asks(ALICE)] == [stays.id]
    assert [place[3] for place in world.lifecycle.expiry_notifier._times] == [stays.id]
    assert notes == ["revoked API key inside, whose scope was workspace ws1"]
    assert [one.tier for one in await ops.secrets.list_secrets(ALICE)] == ["account"]
    with pytest.raises(InvalidKey):
        await ops.keys.principal_of_key(inside.reveal())
    assert (await ops.keys.principal_of_key(whole.reveal())).owner == ALICE.owner
    with pytest.raises(Forbidden):
        await ops.workspaces.remove_workspace(SCOPED, "ws1")


async def test_what_fails_in_between_can_be_done_again(world: World, drives: FakeDrives) -> None:
    ops = world.operations
    await ops.boxes.up(ALICE, "ws1/web")
    drives.files[ALICE.owner, "ws1"] = 1
    drives.used = True
    with pytest.raises(Conflict, match="in use"):
        await ops.workspaces.remove_workspace(ALICE, "ws1", force=True)
    assert await world.store.workspaces(ALICE.owner) == ["ws1"]
    drives.used = False
    await ops.workspaces.remove_workspace(ALICE, "ws1", force=True)
    assert await world.store.workspaces(ALICE.owner) == []


async def test_who_removes_one_is_told_until_when_its_files_can_come_back(
    drives: FakeDrives, ops: Operations
) -> None:
    drives.until = datetime(2026, 1, 3, 3, 4, tzinfo=UTC)
    drives.files = {(ALICE.owner, "ws1"): 3}
    await ops.workspaces.create_workspace(ALICE, "ws1")
    notes: list[str] = []
    await ops.workspaces.remove_workspace(ALICE, "ws1", force=True, progress=Progress(notes.append))
    assert notes == ["the operator can restore its files until 2026-01-03 03:04 UTC"]
