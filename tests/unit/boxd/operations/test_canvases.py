"""Canvases: what may be rendered, who sees which, and when they are gone."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.state.feed import SURFACES, surface
from boxd.errors import BadName, BadRequest, Forbidden, NotFound, QuotaExceeded, TooLarge
from boxd.operations import canvases
from boxd.operations.canvases import LONGEST_TTL, MAX_CANVASES, MAX_CONTENT, MAX_TITLE
from boxd.principal import Principal
from tests.harness.simulation.turns import wait_turns
from tests.harness.simulation.world import ALICE, BOB, SCOPED

if TYPE_CHECKING:
    from boxd.operations import Operations
    from tests.harness.simulation.world import World

OTHER_SCOPE = Principal(ALICE.owner, "ws2", "api_key", "k2")


async def ids(ops: Operations, p: Principal, ws: str | None = None) -> list[str]:
    return [one.id for one in await ops.canvases.list_canvases(p, ws)]


async def test_what_was_rendered_last_is_read(world: World) -> None:
    ops = world.operations
    first = await ops.canvases.render_canvas(ALICE, "plan", "# One", title="The plan")
    assert (first.revision, first.size, first.mime) == (1, 5, "text/markdown")
    second = await ops.canvases.render_canvas(ALICE, "plan", "<p>é", mime="text/html")
    assert (second.revision, second.size, second.title) == (2, 5, "")
    assert await ops.canvases.read_canvas(ALICE, "plan") == (second, "<p>é")
    assert second.to_json() == {
        "id": "plan",
        "title": "",
        "mime": "text/html",
        "size": 5,
        "revision": 2,
        "scope": None,
        "updated": world.clock.now().isoformat(),
        "expires": None,
        "uri": "svc://surfaces/plan",
    }
    assert await ops.canvases.remove_canvas(ALICE, "plan") == second
    with pytest.raises(NotFound):
        await ops.canvases.read_canvas(ALICE, "plan")
    with pytest.raises(NotFound):
        await ops.canvases.remove_canvas(ALICE, "plan")


async def test_scopes_do_not_meet(ops: Operations) -> None:
    await ops.workspaces.create_workspace(ALICE, "ws1")
    for p in (ALICE, SCOPED, OTHER_SCOPE, BOB):
        await ops.canvases.render_canvas(p, "plan", f"of {p.owner} {p.scope}")
    for p in (ALICE, SCOPED, OTHER_SCOPE, BOB):
        canvas, content = await ops.canvases.read_canvas(p, "plan")
        assert content == f"of {p.owner} {p.scope}"
        assert (canvas.scope, canvas.revision) == (p.scope, 1)
        assert await ids(ops, p) == ["plan"]
    await ops.canvases.remove_canvas(SCOPED, "plan")
    assert await ids(ops, SCOPED) == []
    for p in (ALICE, OTHER_SCOPE, BOB):
        assert await ids(ops, p) == ["plan"]


async def test_a_scoped_credential_names_no_other_scope(ops: Operations) -> None:
    await ops.canvases.render_canvas(OTHER_SCOPE, "plan", "text")
    assert await ids(ops, SCOPED, "ws1") == []
    for ws in ("ws2", "default"):
        with pytest.raises(Forbidden, match="ws1"):
            await ops.canvases.list_canvases(SCOPED, ws)
        with pytest.raises(Forbidden, match="ws1"):
            await ops.canvases.read_canvas(SCOPED, "plan", ws)
        with pytest.raises(Forbidden, match="ws1"):
            await ops.canvases.remove_canvas(SCOPED, "plan", ws)


async def test_an_owner_reads_and_removes_those_of_a_workspace(ops: Operations) -> None:
    await ops.canvases.render_canvas(SCOPED, "plan", "text")
    assert await ids(ops, ALICE) == []
    assert await ids(ops, ALICE, "ws1") == ["plan"]
    assert (await ops.canvases.read_canvas(ALICE, "plan", "ws1"))[1] == "text"
    with pytest.raises(NotFound):
        await ops.canvases.read_canvas(BOB, "plan", "ws1")
    await ops.canvases.remove_canvas(ALICE, "plan", "ws1")
    assert await ids(ops, SCOPED) == []


@pytest.mark.parametrize("wrong", ["", "Plan", "a/b", "a" * 65, "a_b", "a\n", "../a", "é"])
async def test_ids_are_checked(ops: Operations, wrong: str) -> None:
    with pytest.raises(BadName):
        await ops.canvases.render_canvas(ALICE, wrong, "text")
    with pytest.raises(NotFound):
        await ops.canvases.read_canvas(ALICE, wrong)


async def test_contents_are_checked(ops: Operations) -> None:
    await ops.canvases.render_canvas(ALICE, "full", "é" * (MAX_CONTENT // 2))
    with pytest.raises(TooLarge, match=str(MAX_CONTENT)):
        await ops.canvases.render_canvas(ALICE, "full", "é" * (MAX_CONTENT // 2) + "x")
    for content, mime in (
        ("a\0b", "text/plain"),
        ("\ud800", "text/plain"),
        ("{", "application/json"),
        ("[" * 100_000, "application/json"),
        ("text", "text/css"),
        ("text", ""),
    ):
        with pytest.raises(BadRequest):
            await ops.canvases.render_canvas(ALICE, "a", content, mime=mime)
    assert await ids(ops, ALICE) == ["full"]
    for mime in ("text/plain", "text/html", "image/svg+xml"):
        await ops.canvases.render_canvas(ALICE, "a", "", mime=mime)
    await ops.canvases.render_canvas(ALICE, "a", '{"a": [1]}', mime="application/json")


async def test_titles_are_checked(ops: Operations) -> None:
    await ops.canvases.render_canvas(ALICE, "a", "text", title="é" * MAX_TITLE)
    for wrong in ("é" * (MAX_TITLE + 1), "a\nb", "\x1b[31m"):
        with pytest.raises(BadRequest):
            await ops.canvases.render_canvas(ALICE, "a", "text", title=wrong)


async def test_one_with_a_ttl_is_gone_in_time(world: World) -> None:
    ops = world.operations
    await ops.canvases.render_canvas(ALICE, "short", "text", ttl=timedelta(seconds=10))
    await ops.canvases.render_canvas(ALICE, "stays", "text")
    world.clock.turn(timedelta(seconds=9))
    assert await ids(ops, ALICE) == ["short", "stays"]
    world.clock.turn(timedelta(seconds=1))
    assert await ids(ops, ALICE) == ["stays"]
    with pytest.raises(NotFound):
        await ops.canvases.read_canvas(ALICE, "short")
    await ops.canvases.render_canvas(BOB, "other", "text")
    assert [one.id for one in await world.store.canvases(ALICE.owner, None)] == ["stays"]
    again = await ops.canvases.render_canvas(ALICE, "short", "text")
    assert (again.revision, again.expires) == (1, None)
    for wrong in (timedelta(0), timedelta(seconds=-1), LONGEST_TTL + timedelta(seconds=1)):
        with pytest.raises(BadRequest):
            await ops.canvases.render_canvas(ALICE, "short", "text", ttl=wrong)


async def test_each_scope_has_so_many(ops: Operations) -> None:
    for number in range(MAX_CANVASES):
        await ops.canvases.render_canvas(ALICE, f"c{number}", "text")
    with pytest.raises(QuotaExceeded, match=str(MAX_CANVASES)):
        await ops.canvases.render_canvas(ALICE, "more", "text")
    assert (await ops.canvases.render_canvas(ALICE, "c0", "text")).revision == 2
    await ops.canvases.render_canvas(SCOPED, "more", "text")
    await ops.canvases.remove_canvas(ALICE, "c1")
    await ops.canvases.render_canvas(ALICE, "more", "text")


async def test_those_that_are_rendered_at_once_are_counted_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = world.operations
    monkeypatch.setattr(canvases, "MAX_CANVASES", 3)
    wait_turns(monkeypatch, world.store, "canvases", "put_canvas")
    calls = [ops.canvases.render_canvas(ALICE, f"c{number}", "text") for number in range(9)]
    calls += [ops.canvases.render_canvas(ALICE, "c0", "text") for _ in range(3)]
    await asyncio.gather(*calls, return_exceptions=True)
    found = await ops.canvases.list_canvases(ALICE)
    assert [(one.id, one.revision) for one in found] == [("c0", 4), ("c1", 1), ("c2", 1)]


async def test_rendering_and_removing_are_heard_in_their_scope(ops: Operations) -> None:
    with ops.visits.changes(ALICE) as account, ops.visits.changes(SCOPED) as inside:
        await ops.canvases.render_canvas(ALICE, "plan", "text")
        assert await account.next() == {SURFACES, surface("plan")}
        await ops.canvases.render_canvas(SCOPED, "mine", "text")
        assert await inside.next() == {SURFACES, surface("mine")}
        await ops.canvases.remove_canvas(ALICE, "plan")
        assert await account.next() == {SURFACES, surface("plan")}


async def test_they_go_with_their_workspace(ops: Operations) -> None:
    await ops.workspaces.create_workspace(ALICE, "ws1")
    await ops.canvases.render_canvas(SCOPED, "plan", "text")
    await ops.canvases.render_canvas(ALICE, "plan", "text")
    await ops.workspaces.remove_workspace(ALICE, "ws1")
    await ops.workspaces.create_workspace(ALICE, "ws1")
    assert await ids(ops, SCOPED) == []
    assert await ids(ops, ALICE) == ["plan"]


async def test_shares_and_cookies_see_none(ops: Operations) -> None:
    await ops.canvases.render_canvas(ALICE, "plan", "text")
    for via in ("share", "cookie"):
        p = Principal(ALICE.owner, None, via, box="0" * 32)
        with pytest.raises(Forbidden):
            await ops.canvases.list_canvases(p)
        with pytest.raises(Forbidden):
            await ops.canvases.render_canvas(p, "plan", "other")
