"""One suite for every ControlStore."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import Conflict, NotFound
from boxd.model.box import TRANSITIONS, BoxState
from boxd.model.profile import Profile, ProfileDefaults
from boxd.model.snapshot import Snapshot
from boxd.secret import digest, random_hex
from tests.harness.control_store.rows import NOW, OTHER, OWNER, make_box, make_key, make_volume

if TYPE_CHECKING:
    from boxd.store.interface import ControlStore


@pytest.fixture
def store(control_store: ControlStore) -> ControlStore:
    """A fresh store of each kind."""
    return control_store


async def test_box_comes_back_as_it_was_written(store: ControlStore) -> None:
    full = make_box()
    bare = replace(make_box("bare"), deadline=None, grace=None, ephemeral=True, drive=False)
    bare = replace(bare, idle_since=None, pinned_until=None)
    await store.add_box(full)
    await store.add_box(bare)
    assert await store.box(full.id) == full
    assert await store.box(bare.id) == bare
    assert await store.box("0" * 32) is None


async def test_name_is_unique_in_owner_and_workspace_only(store: ControlStore) -> None:
    for box in (make_box(), make_box(workspace="ws1"), make_box(owner=OTHER)):
        await store.add_box(box)
    for taken in (make_box(), make_box(workspace="ws1")):
        with pytest.raises(Conflict, match=taken.ref):
            await store.add_box(taken)
    assert len(await store.boxes(OWNER)) == 2
    assert len(await store.all_boxes()) == 3


async def test_name_is_free_again_after_removal(store: ControlStore) -> None:
    first = make_box()
    await store.add_box(first)
    await store.remove_box(first.id)
    await store.remove_box(first.id)
    await store.add_box(make_box())


async def test_adding_the_same_box_twice_is_once(store: ControlStore) -> None:
    box = make_box()
    await store.add_box(box)
    await store.add_box(box)
    assert await store.boxes(OWNER) == [box]


async def test_boxes_are_listed_oldest_first(store: ControlStore) -> None:
    young = replace(make_box("a"), created=NOW + timedelta(seconds=1))
    old = make_box("b")
    await store.add_box(young)
    await store.add_box(old)
    assert await store.boxes(OWNER) == [old, young]


async def test_boxes_that_a_reference_may_mean(store: ControlStore) -> None:
    web, other, api = make_box("web"), make_box("web", "ws1"), make_box("api", "ws1")
    foreign = make_box("web", owner=OTHER)
    young = replace(make_box("db"), id="abc".ljust(32, "0"), created=NOW + timedelta(seconds=1))
    old = replace(make_box("abc"), id="f" * 32)
    for box in (young, old, web, other, api, foreign):
        await store.add_box(box)
    assert await store.find_boxes(OWNER, None, "web") == [web]
    assert await store.find_boxes(OWNER, "ws1", "web") == [other]
    assert await store.find_boxes(OTHER, None, "web") == [foreign]
    assert await store.find_boxes(OWNER, "ws2", "web") == []
    assert await store.find_boxes(OWNER, None, "abc", "abc") == [old, young]
    assert await store.find_boxes(OWNER, None, api.id, api.id) == [api]
    assert await store.find_boxes(OWNER, None, "none", foreign.id) == []
    assert await store.find_boxes(OWNER, None, "%", "%") == []


@pytest.mark.parametrize("before", BoxState)
@pytest.mark.parametrize("after", BoxState)
async def test_state_changes_follow_the_transition_table(
    store: ControlStore, before: BoxState, after: BoxState
) -> None:
    box = replace(make_box(), state=before, detail="old")
    await store.add_box(box)
    if (before, after) in TRANSITIONS:
        changed = await store.change_state(box.id, before, after, "new")
        assert changed == replace(box, state=after, detail="new")
        assert await store.box(box.id) == changed
    else:
        with pytest.raises(Conflict):
            await store.change_state(box.id, before, after, "new")
        assert await store.box(box.id) == box


async def test_state_change_is_compare_and_set(store: ControlStore) -> None:
    box = make_box()
    await store.add_box(box)
    await store.change_state(box.id, BoxState.CREATING, BoxState.RUNNING)
    with pytest.raises(Conflict, match="is running"):
        await store.change_state(box.id, BoxState.CREATING, BoxState.FAILED)
    with pytest.raises(NotFound):
        await store.change_state("f" * 32, BoxState.CREATING, BoxState.RUNNING)


async def test_a_box_changes_in_its_state(store: ControlStore) -> None:
    box = make_box()
    await store.add_box(box)
    await store.change_box(box.id, grace=None, drive=False, detail="its agent misbehaved")
    changed = replace(box, grace=None, drive=False, detail="its agent misbehaved")
    assert await store.box(box.id) == changed
    await store.change_box(box.id)
    await store.change_box("f" * 32, grace=None)


async def test_a_change_of_state_sets_more_in_the_same_step(store: ControlStore) -> None:
    box = replace(make_box(), state=BoxState.RUNNING, memory=False)
    await store.add_box(box)
    after = BoxState.SUSPENDING
    wanted = replace(box, state=after, detail="idle", since=NOW, step=1, idle_since=None)
    changed = await store.change_state(
        box.id, BoxState.RUNNING, after, "idle", since=NOW, step=1, idle_since=None
    )
    assert changed == wanted == await store.box(box.id)
    with pytest.raises(Conflict):
        await store.change_state(box.id, BoxState.RUNNING, after, "idle", step=2)
    assert await store.box(box.id) == wanted


def make_snapshot(name: str = "before", box_name: str = "web", owner: str = OWNER) -> Snapshot:
    """An unfinished snapshot."""
    return Snapshot(
        id=random_hex(16),
        owner=owner,
        workspace=None,
        box_name=box_name,
        name=name,
        box_id=random_hex(16),
        created=NOW,
        ready=False,
        memory=True,
        image="debian",
        flavor="small",
        cpus=1.5,
        mem_mb=1024,
        disk_mb=2048,
        pids=99,
        egress="none",
        drive=True,
        backend="runc",
    )


async def test_snapshots(store: ControlStore) -> None:
    first = make_snapshot()
    later = replace(make_snapshot("after"), created=NOW + timedelta(seconds=1), workspace="ws1")
    other = make_snapshot(box_name="db", owner=OTHER)
    for one in (later, first, other, first):
        await store.add_snapshot(one)
    assert await store.snapshots(OWNER) == [first, later]
    assert sorted(one.id for one in await store.all_snapshots()) == sorted(
        one.id for one in (first, later, other)
    )
    with pytest.raises(Conflict, match="before"):
        await store.add_snapshot(make_snapshot())
    await store.finish_snapshot(first.id, 3 << 40)
    await store.finish_snapshot("f" * 32, 0)
    assert (await store.snapshots(OWNER))[0] == replace(first, ready=True, size_bytes=3 << 40)
    await store.rename_snapshot(first.id, "earlier")
    await store.rename_snapshot("f" * 32, "earlier")
    assert (await store.snapshots(OWNER))[0].name == "earlier"
    again = replace(make_snapshot(), id="e" * 32)
    await store.add_snapshot(again)
    with pytest.raises(Conflict, match="exists"):
        await store.rename_snapshot(first.id, "before")
    await store.remove_snapshot(again.id)
    await store.remove_snapshot(first.id)
    await store.remove_snapshot(first.id)
    assert await store.snapshots(OWNER) == [later]
    await store.add_snapshot(make_snapshot())


async def test_profiles(store: ControlStore) -> None:
    bare = Profile("web", "debian")
    full = Profile(
        "Lab",
        "python",
        ProfileDefaults("large", timedelta(hours=2), timedelta(minutes=5), "none", durable=True),
    )
    for one in (bare, full):
        await store.put_profile(OWNER, one)
    assert await store.profiles(OWNER) == [full, bare]
    assert await store.profiles(OTHER) == []
    built = replace(bare, snapshot="a" * 32, built_from="web@s1")
    await store.put_profile(OWNER, built)
    assert await store.profiles(OWNER) == [full, built]
    await store.put_profile(OWNER, replace(bare, image="node"))
    assert await store.profiles(OWNER) == [full, replace(bare, image="node")]
    await store.remove_profile(OTHER, "Lab")
    await store.remove_profile(OWNER, "Lab")
    await store.remove_profile(OWNER, "Lab")
    assert await store.profiles(OWNER) == [replace(bare, image="node")]


async def test_key_is_found_by_its_digest(store: ControlStore) -> None:
    key = make_key()
    await store.add_key(key, digest("svc_one"))
    await store.add_key(key, digest("svc_one"))
    assert await store.find_key(digest("svc_one"), NOW) == key
    assert await store.find_key(digest("svc_two"), NOW) is None
    assert await store.keys(OWNER) == [key]
    assert await store.keys(OTHER) == []


async def test_an_expired_key_is_listed_and_not_found(store: ControlStore) -> None:
    key, endless = make_key(), replace(make_key("endless"), expires=None)
    await store.add_key(key, digest("a"))
    await store.add_key(endless, digest("b"))
    assert key.expires is not None
    last = key.expires - timedelta(microseconds=1)
    assert await store.find_key(digest("a"), last) == key
    assert await store.find_key(digest("a"), key.expires) is None
    assert await store.find_key(digest("b"), key.expires + timedelta(days=9999)) == endless
    assert [one.name for one in await store.keys(OWNER)] == ["endless", "laptop"]


async def test_key_names_are_unique_per_owner(store: ControlStore) -> None:
    await store.add_key(make_key(), digest("a"))
    await store.add_key(make_key(owner=OTHER), digest("b"))
    with pytest.raises(Conflict, match="laptop"):
        await store.add_key(make_key(), digest("c"))


async def test_removed_key_is_gone(store: ControlStore) -> None:
    key = make_key()
    await store.add_key(key, digest("a"))
    await store.remove_key("another")
    assert await store.find_key(digest("a"), NOW) == key
    await store.remove_key(key.id)
    await store.remove_key(key.id)
    assert await store.find_key(digest("a"), NOW) is None


async def test_last_use_never_goes_back(store: ControlStore) -> None:
    key = make_key()
    await store.add_key(key, digest("a"))
    await store.touch_key(key.id, NOW + timedelta(minutes=2))
    await store.touch_key(key.id, NOW + timedelta(minutes=1))
    await store.touch_key("unknown", NOW)
    assert (await store.keys(OWNER))[0].last_used == NOW + timedelta(minutes=2)


async def test_workspaces_are_remembered_once(store: ControlStore) -> None:
    assert await store.add_workspace(OWNER, "ws2", NOW)
    assert await store.add_workspace(OWNER, "ws1", NOW)
    assert not await store.add_workspace(OWNER, "ws1", NOW)
    assert await store.workspaces(OWNER) == ["ws1", "ws2"]
    assert await store.workspaces(OTHER) == []


async def test_volume_is_one_per_workspace(store: ControlStore) -> None:
    default, named, foreign = make_volume(), make_volume("ws1"), make_volume(owner=OTHER)
    for volume in (default, named, foreign, default):
        await store.add_volume(volume)
    assert await store.find_volume(OWNER, None) == default
    assert await store.find_volume(OWNER, "ws1") == named
    assert await store.find_volume(OWNER, "ws2") is None
    assert {volume.id for volume in await store.list_volumes(OWNER)} == {default.id, named.id}
    assert len(await store.list_volumes()) == 3
    for taken in (make_volume(), make_volume("ws1")):
        with pytest.raises(Conflict):
            await store.add_volume(taken)
    await store.remove_volume(default.id)
    await store.remove_volume(default.id)


async def test_settings(store: ControlStore) -> None:
    assert await store.setting("instance") is None
    await store.put_setting("instance", "one")
    await store.put_setting("instance", "two")
    assert await store.setting("instance") == "two"
