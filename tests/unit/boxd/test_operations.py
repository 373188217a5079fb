"""The verbs of the service on fakes: references, keys, scopes, workspaces."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import (
    Ambiguous,
    BadName,
    BadRequest,
    Conflict,
    Forbidden,
    InvalidKey,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from boxd.principal import Principal
from tests.harness.world import ALICE, BOB, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.operations import Operations

SCOPED = Principal(ALICE.owner, "ws1", "api_key", "k1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A started core on fakes."""
    made = World(tmp_path)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def ops(world: World) -> Operations:
    """Its operations."""
    return world.operations


async def _renamed_id(world: World, ref: str, box_id: str) -> None:
    """Gives a box another id, so that prefixes can be tested."""
    [box] = [box for box in await world.store.boxes(ALICE.owner) if box.ref == ref]
    await world.store.remove_box(box.id)
    await world.store.add_box(replace(box, id=box_id))


async def test_up_shows_the_box_in_its_json_form(world: World, ops: Operations) -> None:
    view = await ops.up(ALICE, "ws1/web^2h")
    world.clock.turn(timedelta(seconds=3))
    [listed] = await ops.list_boxes(ALICE, everywhere=True)
    shown = listed.to_json()
    assert shown["id"] == view.id
    assert {name: shown[name] for name in ("name", "workspace", "ref", "image", "state")} == {
        "name": "web",
        "workspace": "ws1",
        "ref": "ws1/web",
        "image": "debian",
        "state": "running",
    }
    assert (shown["age_s"], shown["cpus"], shown["mem_mb"]) == (3.0, 1.0, 512)
    assert shown["next"] == {"act": "removed", "at": shown["deadline"]}
    assert "workspace" not in (await ops.up(ALICE, "web")).to_json()


async def test_list_is_per_workspace_or_everywhere(ops: Operations) -> None:
    for spec in ("web", "ws1/web", "ws2/db"):
        await ops.up(ALICE, spec)
    await ops.up(BOB, "web")

    async def refs(ws: str | None, *, everywhere: bool = False) -> list[str]:
        return sorted(box.ref for box in await ops.list_boxes(ALICE, ws, everywhere=everywhere))

    assert await refs(None) == ["web"]
    assert await refs("ws1") == ["ws1/web"]
    assert await refs(None, everywhere=True) == ["web", "ws1/web", "ws2/db"]
    assert [box.ref for box in await ops.list_boxes(SCOPED, everywhere=True)] == ["ws1/web"]
    with pytest.raises(Forbidden, match="ws1"):
        await ops.list_boxes(SCOPED, "ws2")
    with pytest.raises(BadName):
        await ops.list_boxes(ALICE, "../x")


async def test_names_are_per_owner(ops: Operations) -> None:
    mine, theirs = await ops.up(ALICE, "web"), await ops.up(BOB, "web")
    assert mine.id != theirs.id
    assert (await ops.resolve(ALICE, "web")).id == mine.id
    for reference in (theirs.id, theirs.id[:12]):
        with pytest.raises(NotFound) as foreign:
            await ops.resolve(ALICE, reference)
        with pytest.raises(NotFound) as absent:
            await ops.resolve(ALICE, "0" * len(reference))
        assert str(foreign.value).replace(reference, "") == str(absent.value).replace(
            "0" * len(reference), ""
        )


async def test_bare_name_is_the_default_workspace_alone(ops: Operations) -> None:
    await ops.up(ALICE, "ws1/web")
    with pytest.raises(NotFound):
        await ops.resolve(ALICE, "web")
    assert (await ops.resolve(ALICE, "web", "ws1")).ref == "ws1/web"
    assert (await ops.resolve(ALICE, "ws1/web", "ws1")).ref == "ws1/web"
    with pytest.raises(BadRequest, match="ws2"):
        await ops.resolve(ALICE, "ws1/web", "ws2")


async def test_id_and_prefix_reach_every_workspace(world: World, ops: Operations) -> None:
    view = await ops.up(ALICE, "ws1/web")
    box_id = "c0ffee" + "0" * 26
    await _renamed_id(world, "ws1/web", box_id)
    for reference in (box_id, box_id.upper(), "c0ffee", "C0F", "c"):
        assert (await ops.resolve(ALICE, reference)).id == box_id
    assert view.id != box_id


async def test_ambiguous_reference_names_the_candidates(world: World, ops: Operations) -> None:
    for name, digits in (("one", "abc1"), ("two", "abc2"), ("abc", "0123")):
        await ops.up(ALICE, name)
        await _renamed_id(world, name, digits.ljust(32, "0"))
    for reference, candidates in (("ab", ("one", "two")), ("abc", ("one", "two", "abc"))):
        with pytest.raises(Ambiguous) as refused:
            await ops.remove(ALICE, reference)
        for name in candidates:
            box = next(b for b in await world.store.all_boxes() if b.name == name)
            assert f"{name} ({box.id})" in str(refused.value)
    assert len(await world.store.all_boxes()) == 3
    assert (await ops.resolve(ALICE, "abc1")).name == "one"


async def test_remove_removes_one(world: World, ops: Operations) -> None:
    await ops.up(ALICE, "web")
    assert (await ops.remove(ALICE, "web")).ref == "web"
    assert await world.left_overs() == {}
    with pytest.raises(NotFound):
        await ops.remove(ALICE, "web")


async def test_attach_by_spec_creates_and_counts(ops: Operations) -> None:
    async with ops.attach(ALICE, "web", kind="spec", why="session") as held:
        [view] = await ops.list_boxes(ALICE)
        assert (view.id, view.attached, view.why) == (held.box.id, 1, {"session": 1})
    assert (await ops.list_boxes(ALICE))[0].attached == 0


async def test_attach_by_reference_never_creates(world: World, ops: Operations) -> None:
    with pytest.raises(NotFound):
        async with ops.attach(ALICE, "web", kind="reference", why="session"):
            pass
    assert await world.left_overs() == {}
    box = await ops.up(ALICE, "web")
    async with ops.attach(ALICE, box.id[:12], kind="reference", why="session") as held:
        assert held.box.id == box.id


async def test_box_made_by_exec_gets_the_tier_s_deadline(world: World, ops: Operations) -> None:
    notes: list[str] = []
    for spec, expected in (("one", world.tier.deadline_exec), ("two^1h", timedelta(hours=1))):
        async with ops.attach(ALICE, spec, kind="spec", why="exec", notes=notes.append) as held:
            assert held.box.deadline == world.clock.now() + expected
    async with ops.attach(ALICE, "one", kind="spec", why="exec", notes=notes.append):
        pass
    assert notes == []


async def test_throwaway_box_only_where_it_can_be_attached(world: World, ops: Operations) -> None:
    with pytest.raises(BadName):
        await ops.up(ALICE, "_")
    async with ops.attach(ALICE, "_", kind="spec", why="session") as held:
        assert held.box.ephemeral
    await world.close()
    assert await world.left_overs() == {}


async def test_key_works_and_is_stored_as_a_hash(world: World, ops: Operations) -> None:
    key, secret = await ops.create_key(ALICE, "laptop", scope=None, ttl=None)
    text = secret.reveal()
    assert text.startswith("svc_")
    assert len(text) == 44
    assert int(text[4:], 16) >= 0
    assert await ops.principal_of_key(text) == Principal(ALICE.owner, None, "api_key", key.id)
    assert text not in repr(world.store.__dict__)
    assert await ops.list_keys(ALICE) == [replace(key, last_used=None)]
    assert await ops.list_keys(BOB) == []


async def test_failures_of_keys_are_one(world: World, ops: Operations) -> None:
    _, revoked = await ops.create_key(ALICE, "revoked", scope=None, ttl=None)
    _, expired = await ops.create_key(ALICE, "expired", scope=None, ttl=timedelta(hours=1))
    await ops.principal_of_key(expired.reveal())
    await ops.remove_key(ALICE, "revoked")
    world.clock.turn(timedelta(hours=1))
    bad = [None, "", "svc_" + "0" * 40, "x" * 5000, "\udc80", revoked.reveal(), expired.reveal()]
    texts = set()
    for presented in bad:
        with pytest.raises(InvalidKey) as refused:
            await ops.principal_of_key(presented)
        texts.add(str(refused.value))
    assert texts == {"invalid API key"}


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


async def test_bad_keys_are_refused(ops: Operations) -> None:
    for ttl in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(BadRequest, match="positive"):
            await ops.create_key(ALICE, "laptop", scope=None, ttl=ttl)
    with pytest.raises(BadName):
        await ops.create_key(ALICE, "a\nb", scope=None, ttl=None)
    await ops.create_key(ALICE, "laptop", scope=None, ttl=None)
    with pytest.raises(Conflict, match="laptop"):
        await ops.create_key(ALICE, "laptop", scope=None, ttl=None)
    with pytest.raises(NotFound):
        await ops.remove_key(ALICE, "other")


async def test_keys_are_limited(tmp_path: Path) -> None:
    world = World(tmp_path, tier=lambda tier: replace(tier, keys=1, workspaces=1))
    await world.operations.create_key(ALICE, "one", scope="ws1", ttl=None)
    with pytest.raises(QuotaExceeded, match="1 API keys"):
        await world.operations.create_key(ALICE, "two", scope=None, ttl=None)
    await world.start()
    await world.operations.up(ALICE, "ws1/web")
    with pytest.raises(QuotaExceeded, match="1 workspaces"):
        await world.operations.up(ALICE, "ws2/web")
    await world.close()


async def test_scoped_key_lives_in_its_workspace(ops: Operations) -> None:
    _, secret = await ops.create_key(ALICE, "ci", scope="ws1", ttl=None)
    scoped = await ops.principal_of_key(secret.reveal())
    mine = await ops.up(scoped, "web")
    assert mine.ref == "ws1/web"
    outside = await ops.up(ALICE, "web")
    for call in ("ws2/web", "ws2/new"):
        with pytest.raises(Forbidden, match="ws1"):
            await ops.resolve(scoped, call)
        with pytest.raises(Forbidden, match="ws1"):
            await ops.up(scoped, call)
    for reference in (outside.id, outside.id[:12]):
        with pytest.raises(NotFound):
            await ops.resolve(scoped, reference)
    for refused in (
        ops.create_key(scoped, "x", scope=None, ttl=None),
        ops.list_keys(scoped),
        ops.remove_key(scoped, "ci"),
    ):
        with pytest.raises(Forbidden):
            await refused


async def test_scoped_key_makes_no_workspace(world: World, ops: Operations) -> None:
    with pytest.raises(Forbidden, match="create a workspace"):
        await ops.up(SCOPED, "web")
    assert await world.store.workspaces(ALICE.owner) == []
    assert await world.left_overs() == {}


async def test_drive_that_is_not_enabled_is_unavailable(ops: Operations) -> None:
    with pytest.raises(Unavailable, match="not enabled"):
        await ops.drive(ALICE).__aenter__()
    with pytest.raises(BadName):
        await ops.drive(ALICE, "..").__aenter__()
    with pytest.raises(Forbidden):
        await ops.drive(SCOPED, "ws2").__aenter__()


async def test_catalogs(ops: Operations) -> None:
    assert [image.name for image in ops.images()] == ["debian", "unbuilt"]
    assert [flavor.name for flavor in ops.flavors()] == ["small", "large"]
