"""Profiles that are built of boxes, on fakes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, Forbidden, NotFound, QuotaExceeded, Unsupported
from boxd.model.box import BoxState
from boxd.model.profile import ProfileDefaults
from boxd.model.progress import Progress
from boxd.operations import profiles
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.model.profile import Profile
    from tests.harness.simulation.world import World


async def built(world: World, ref: str = "web") -> Profile:
    """A profile `lab` of a new box."""
    await world.operations.boxes.up(ALICE, ref)
    return await world.operations.builds.build_profile(
        ALICE, "lab", ref, ProfileDefaults(grace=timedelta(minutes=5), egress="none")
    )


async def test_boxes_of_it_start_from_its_disk(sleepy: World) -> None:
    profile = await built(sleepy)
    [kept] = await sleepy.store.all_snapshots()
    assert (profile.image, profile.snapshot, profile.built_from) == ("debian", kept.id, "web@s1")
    await sleepy.operations.boxes.remove(ALICE, "web")
    await sleepy.operations.boxes.up(ALICE, "ws1/new:lab")
    [box] = await sleepy.store.boxes(ALICE.owner)
    assert (box.state, box.detail, box.egress) == (BoxState.RUNNING, "", "none")
    assert box.grace == timedelta(minutes=5)
    # Its processes are its own; those of the base are not brought back.
    assert sleepy.backend.resumes(box.id) == 0
    assert sleepy.backend.origin(box.id) == kept.id


@pytest.mark.parametrize("asleep", [False, True])
async def test_it_holds_no_memory(sleepy: World, asleep: bool) -> None:
    """A profile needs the disk alone, and memory takes room on the host's disk."""
    await sleepy.operations.boxes.up(ALICE, "web")
    if asleep:
        await sleepy.operations.boxes.suspend(ALICE, "web")
    profile = await sleepy.operations.builds.build_profile(ALICE, "lab", "web")
    [view] = await sleepy.operations.snapshots.list_snapshots(ALICE)
    assert (view.snapshot.id, view.snapshot.memory) == (profile.snapshot, False)
    assert view.snapshot.size_bytes == 1 << 20  # the fake's disk
    [box] = await sleepy.store.boxes(ALICE.owner)
    assert box.memory is asleep


async def test_a_workspace_may_have_it(sleepy: World) -> None:
    await built(sleepy)
    await sleepy.operations.workspaces.create_workspace(ALICE, "ws1")
    await sleepy.operations.workspaces.set_workspace_profile(ALICE, "ws1", "lab")
    view = await sleepy.operations.boxes.up(ALICE, "ws1/new")
    [kept] = await sleepy.store.all_snapshots()
    assert sleepy.backend.origin(view.id) == kept.id


async def test_what_it_needs_is_not_removed(sleepy: World) -> None:
    await built(sleepy)
    with pytest.raises(Conflict, match="first: profiles rm lab"):
        await sleepy.operations.snapshots.remove_snapshot(ALICE, "web", "s1")
    await sleepy.operations.profiles.remove_profile(ALICE, "lab")
    await sleepy.operations.snapshots.remove_snapshot(ALICE, "web", "s1")
    assert await sleepy.store.all_snapshots() == []


async def test_it_says_that_what_it_needs_is_gone(sleepy: World) -> None:
    await built(sleepy, "ws1/web")
    notes: list[str] = []
    await sleepy.operations.workspaces.remove_workspace(
        ALICE, "ws1", force=True, progress=Progress(notes.append)
    )
    assert notes == ["profile lab was built from ws1/web@s1, which is removed"]
    with pytest.raises(NotFound, match=r"ws1/web@s1, of which it was built, is gone; build it"):
        await sleepy.operations.boxes.up(ALICE, "new:lab")
    assert await sleepy.store.boxes(ALICE.owner) == []
    assert (await sleepy.operations.profiles.list_profiles(ALICE))[0].name == "lab"


async def test_what_is_refused_keeps_nothing(
    sleepy: World, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")
    build = sleepy.operations.builds.build_profile
    with pytest.raises(NotFound):
        await build(ALICE, "lab", "other")
    with pytest.raises(NotFound):
        await build(BOB, "lab", "web")
    with pytest.raises(Forbidden):
        await build(SCOPED, "lab", "web")
    with monkeypatch.context() as patch:
        patch.setattr(profiles, "MAX_PROFILES", 0)
        with pytest.raises(QuotaExceeded):
            await build(ALICE, "lab", "web")
    assert await sleepy.store.all_snapshots() == []
    assert await sleepy.operations.profiles.list_profiles(ALICE) == []
    await world.operations.boxes.up(ALICE, "web")
    with pytest.raises(Unsupported):
        await world.operations.builds.build_profile(ALICE, "lab", "web")


async def test_a_row_that_cannot_be_written_leaves_no_snapshot(
    sleepy: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sleepy.operations.boxes.up(ALICE, "web")

    async def failing(owner: str, profile: Profile) -> None:
        raise Conflict("no")

    monkeypatch.setattr(sleepy.store, "put_profile", failing)
    with pytest.raises(Conflict, match="no"):
        await sleepy.operations.builds.build_profile(ALICE, "lab", "web")
    assert await sleepy.store.all_snapshots() == []
    assert await sleepy.backend.snapshots() == ()
