"""Verbs of boxes on fakes: references, lists, making and attaching."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Ambiguous, BadName, BadRequest, Forbidden, NotFound
from boxd.model.box import BoxState
from boxd.model.profile import ProfileDefaults
from boxd.model.progress import Progress
from boxd.principal import Principal
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World


async def _renamed_id(world: World, ref: str, box_id: str) -> None:
    """Gives a box another id, so that prefixes can be tested."""
    [box] = [box for box in await world.store.boxes(ALICE.owner) if box.ref == ref]
    await world.store.remove_box(box.id)
    await world.store.add_box(replace(box, id=box_id))


async def test_up_shows_the_box_in_its_json_form(world: World, ops: Operations) -> None:
    view = await ops.boxes.up(ALICE, "ws1/web^2h")
    world.clock.turn(timedelta(seconds=3))
    [listed] = await ops.boxes.list_boxes(ALICE, everywhere=True)
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
    assert "workspace" not in (await ops.boxes.up(ALICE, "web")).to_json()


async def test_for_who_has_one_box_there_is_no_other(ops: Operations) -> None:
    mine, other = await ops.boxes.up(ALICE, "web"), await ops.boxes.up(ALICE, "db")
    visitor = Principal(ALICE.owner, None, "share", "s1", box=mine.id)
    assert (await ops.directory.resolve(visitor, mine.id)).id == mine.id
    for ref in ("db", other.id):
        with pytest.raises(NotFound):
            await ops.directory.resolve(visitor, ref)
    async with ops.boxes.attach(visitor, BoxAccess("web", kind="reference", why="session")) as held:
        assert held.box.id == mine.id
    with pytest.raises(Forbidden):
        await ops.boxes.list_boxes(visitor)
    only = replace(ALICE, box=mine.id)
    assert [box.id for box in await ops.boxes.list_boxes(only, everywhere=True)] == [mine.id]


async def test_list_is_per_workspace_or_everywhere(ops: Operations) -> None:
    for spec in ("web", "ws1/web", "ws2/db"):
        await ops.boxes.up(ALICE, spec)
    await ops.boxes.up(BOB, "web")

    async def refs(ws: str | None, *, everywhere: bool = False) -> list[str]:
        return sorted(
            box.ref for box in await ops.boxes.list_boxes(ALICE, ws, everywhere=everywhere)
        )

    assert await refs(None) == ["web"]
    assert await refs("ws1") == ["ws1/web"]
    assert await refs(None, everywhere=True) == ["web", "ws1/web", "ws2/db"]
    assert [box.ref for box in await ops.boxes.list_boxes(SCOPED, everywhere=True)] == ["ws1/web"]
    with pytest.raises(Forbidden, match="ws1"):
        await ops.boxes.list_boxes(SCOPED, "ws2")
    with pytest.raises(BadName):
        await ops.boxes.list_boxes(ALICE, "../x")


async def test_names_are_per_owner(ops: Operations) -> None:
    mine, theirs = await ops.boxes.up(ALICE, "web"), await ops.boxes.up(BOB, "web")
    assert mine.id != theirs.id
    assert (await ops.directory.resolve(ALICE, "web")).id == mine.id
    for reference in (theirs.id, theirs.id[:12]):
        with pytest.raises(NotFound) as foreign:
            await ops.directory.resolve(ALICE, reference)
        with pytest.raises(NotFound) as absent:
            await ops.directory.resolve(ALICE, "0" * len(reference))
        assert str(foreign.value).replace(reference, "") == str(absent.value).replace(
            "0" * len(reference), ""
        )


async def test_bare_name_is_the_default_workspace_alone(ops: Operations) -> None:
    await ops.boxes.up(ALICE, "ws1/web")
    with pytest.raises(NotFound):
        await ops.directory.resolve(ALICE, "web")
    assert (await ops.directory.resolve(ALICE, "web", "ws1")).ref == "ws1/web"
    assert (await ops.directory.resolve(ALICE, "ws1/web", "ws1")).ref == "ws1/web"
    with pytest.raises(BadRequest, match="ws2"):
        await ops.directory.resolve(ALICE, "ws1/web", "ws2")


async def test_id_and_prefix_reach_every_workspace(world: World, ops: Operations) -> None:
    view = await ops.boxes.up(ALICE, "ws1/web")
    box_id = "c0ffee" + "0" * 26
    await _renamed_id(world, "ws1/web", box_id)
    for reference in (box_id, box_id.upper(), "c0ffee", "C0F", "c"):
        assert (await ops.directory.resolve(ALICE, reference)).id == box_id
    assert view.id != box_id


async def test_ambiguous_reference_names_the_candidates(world: World, ops: Operations) -> None:
    for name, digits in (("one", "abc1"), ("two", "abc2"), ("abc", "0123")):
        await ops.boxes.up(ALICE, name)
        await _renamed_id(world, name, digits.ljust(32, "0"))
    for reference, candidates in (("ab", ("one", "two")), ("abc", ("one", "two", "abc"))):
        with pytest.raises(Ambiguous) as refused:
            await ops.boxes.remove(ALICE, reference)
        for name in candidates:
            box = next(b for b in await world.store.all_boxes() if b.name == name)
            assert f"{name} ({box.id})" in str(refused.value)
    assert len(await world.store.all_boxes()) == 3
    assert (await ops.directory.resolve(ALICE, "abc1")).name == "one"


async def test_remove_removes_one(world: World, ops: Operations) -> None:
    await ops.boxes.up(ALICE, "web")
    assert (await ops.boxes.remove(ALICE, "web")).ref == "web"
    assert await world.left_overs() == {}
    with pytest.raises(NotFound):
        await ops.boxes.remove(ALICE, "web")


async def test_attach_by_spec_creates_and_counts(ops: Operations) -> None:
    async with ops.boxes.attach(ALICE, BoxAccess("web", kind="spec", why="session")) as held:
        [view] = await ops.boxes.list_boxes(ALICE)
        assert (view.id, view.attached, view.why) == (held.box.id, 1, {"session": 1})
    assert (await ops.boxes.list_boxes(ALICE))[0].attached == 0


async def test_attach_by_reference_never_creates(world: World, ops: Operations) -> None:
    with pytest.raises(NotFound):
        async with ops.boxes.attach(ALICE, BoxAccess("web", kind="reference", why="session")):
            pass
    assert await world.left_overs() == {}
    box = await ops.boxes.up(ALICE, "web")
    async with ops.boxes.attach(
        ALICE, BoxAccess(box.id[:12], kind="reference", why="session")
    ) as held:
        assert held.box.id == box.id


async def test_a_run_box_gets_the_tier_s_deadline(world: World, ops: Operations) -> None:
    notes: list[str] = []
    await ops.profiles.set_profile(
        ALICE, "brief", "debian", ProfileDefaults(ttl=timedelta(minutes=5))
    )
    for spec, expected in (
        ("one", world.tier.deadline_exec),
        ("two^1h", timedelta(hours=1)),
        ("three:brief", timedelta(minutes=5)),
    ):
        async with ops.boxes.attach(
            ALICE, BoxAccess(spec, kind="spec", why="exec", run_box=True), Progress(notes.append)
        ) as held:
            assert held.box.deadline == world.clock.now() + expected
    async with ops.boxes.attach(
        ALICE, BoxAccess("one", kind="spec", why="exec"), Progress(notes.append)
    ):
        pass
    async with ops.boxes.attach(
        ALICE, BoxAccess("four", kind="spec", why="exec"), Progress(notes.append)
    ) as held:
        assert held.box.deadline is None  # it is the verb that says it, not the word
    assert notes == []


async def test_up_makes_a_box_durable_and_takes_it_back(ops: Operations) -> None:
    assert not (await ops.boxes.up(ALICE, "web")).durable
    assert (await ops.boxes.up(ALICE, "web", durable=True)).durable
    assert (await ops.boxes.up(ALICE, "web")).durable
    assert not (await ops.boxes.up(ALICE, "web", durable=False)).durable
    assert (await ops.boxes.up(ALICE, "db", durable=True)).durable
    shown = {box.ref: box.durable for box in await ops.boxes.list_boxes(ALICE)}
    assert shown == {"web": False, "db": True}


async def test_up_with_a_mark(ops: Operations) -> None:
    notes: list[str] = []
    await ops.boxes.up(ALICE, "web")
    assert (await ops.boxes.up(ALICE, "web!", progress=Progress(notes.append))).durable
    assert notes == ["box web is durable now: it is removed only by rm, or at its deadline"]
    assert (await ops.boxes.up(ALICE, "db!", progress=Progress(notes.append))).durable
    assert not notes[1:]
    assert not (await ops.boxes.up(ALICE, "web+")).durable
    with pytest.raises(BadRequest, match="'!' makes box db durable, and --no-durable the opposite"):
        await ops.boxes.up(ALICE, "db!", durable=False)


async def test_up_tells_what_it_clamped_and_ignored(ops: Operations) -> None:
    notes: list[str] = []
    view = await ops.boxes.up(ALICE, "web^400d", progress=Progress(notes.append))
    assert notes == ["deadline ^400d shortened: the maximum for box web is ^365d"]
    assert view.clamped
    await ops.boxes.up(ALICE, "web^1h", progress=Progress(notes.append))
    assert notes[1:] == ["deadline ^1h ignored: box web exists; web+ recreates it"]


async def test_throwaway_box_only_where_it_can_be_attached(world: World, ops: Operations) -> None:
    with pytest.raises(BadName):
        await ops.boxes.up(ALICE, "_")
    async with ops.boxes.attach(ALICE, BoxAccess("_", kind="spec", why="session")) as held:
        assert held.box.ephemeral
    await world.close()
    assert await world.left_overs() == {}


async def test_who_waits_for_a_box_is_told_what_happens_to_it(sleepy: World) -> None:
    async def attached(target: str, kind: Literal["spec", "reference"]) -> list[str]:
        lines: list[str] = []
        access = BoxAccess(target, kind=kind, why="shell")
        progress = Progress.in_lines(None, lines.append)
        async with sleepy.operations.boxes.attach(ALICE, access, progress):
            pass
        return lines

    assert await attached("ws1/web", "spec") == ["creating ws1/web ..."]
    kinds: list[Literal["spec", "reference"]] = ["spec", "reference"]
    for kind in kinds:
        assert await attached("ws1/web", kind) == []
        await sleepy.operations.boxes.suspend(ALICE, "ws1/web")
        assert await attached("ws1/web", kind) == ["resuming ws1/web ..."]
        box = await sleepy.operations.directory.resolve(ALICE, "ws1/web")
        await sleepy.store.change_state(box.id, BoxState.RUNNING, BoxState.FAILED)
        assert await attached("ws1/web", kind) == ["starting ws1/web ..."]
    [text] = await attached("_", "spec")
    assert text.startswith("creating tmp-")
