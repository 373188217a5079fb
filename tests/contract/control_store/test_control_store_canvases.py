"""One suite for every ControlStore: canvases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.model.canvas import Canvas
from boxd.model.end import End
from tests.harness.control_store.rows import NOW, OTHER, OWNER, make_ask

if TYPE_CHECKING:
    from boxd.store.interface import ControlStore

SECOND = timedelta(seconds=1)


@pytest.fixture
def store(control_store: ControlStore) -> ControlStore:
    """A fresh store of each kind."""
    return control_store


def make_canvas(canvas_id: str = "plan", scope: str | None = None, owner: str = OWNER) -> Canvas:
    """A canvas that does not end."""
    return Canvas(owner, scope, canvas_id, "The plan", "text/markdown", 3, 1, NOW, None)


async def test_a_canvas_is_found_in_its_scope_alone(store: ControlStore) -> None:
    account, inside = make_canvas(), make_canvas(scope="ws1")
    foreign = make_canvas(owner=OTHER)
    for one, content in ((account, "# é"), (inside, "two"), (foreign, "three")):
        await store.put_canvas(one, content)
    assert await store.canvas(OWNER, None, "plan") == (account, "# é")
    assert await store.canvas(OWNER, "ws1", "plan") == (inside, "two")
    assert await store.canvas(OWNER, "ws2", "plan") is None
    assert await store.canvas(OWNER, None, "other") is None
    assert await store.canvases(OTHER, None) == [foreign]
    assert await store.canvases(OTHER, "ws1") == []


async def test_what_ends_by_itself_is_told(store: ControlStore) -> None:
    soon, inside = NOW + SECOND, replace(make_canvas(scope="ws1"), expires=NOW + 2 * SECOND)
    canvas = replace(make_canvas(owner=OTHER), expires=soon)
    open_ask, answered = make_ask(), make_ask()
    for one in (canvas, inside, make_canvas("endless")):
        await store.put_canvas(one, "x")
    for ask in (open_ask, answered):
        await store.add_ask(ask)
    await store.answer_ask(answered.id, "yes", NOW)
    last = [
        End("canvas", OWNER, "ws1", "plan", NOW + 2 * SECOND),
        End("ask", OWNER, open_ask.workspace, open_ask.id, open_ask.expires),
    ]
    found = await store.ends(NOW)
    assert sorted(found, key=lambda end: end.at) == [
        End("canvas", OTHER, None, "plan", soon),
        *last,
    ]
    assert sorted(await store.ends(soon), key=lambda end: end.at) == last
    assert await store.ends(open_ask.expires) == []


async def test_a_later_one_takes_the_place_of_its_id(store: ControlStore) -> None:
    first, dash = make_canvas("plan"), make_canvas("a-b")
    for one in (first, dash, first):
        await store.put_canvas(one, "old")
    newer = replace(
        first,
        title="",
        mime="text/html",
        size=5,
        revision=2,
        updated=NOW + SECOND,
        expires=NOW + 2 * SECOND,
    )
    await store.put_canvas(newer, "newer")
    assert await store.canvas(OWNER, None, "plan") == (newer, "newer")
    assert await store.canvases(OWNER, None) == [dash, newer]


async def test_what_is_removed_is_gone_and_the_rest_stays(store: ControlStore) -> None:
    for scope in (None, "ws1"):
        for canvas_id in ("a", "b"):
            await store.put_canvas(make_canvas(canvas_id, scope), "text")
    await store.remove_canvas(OWNER, None, "a")
    await store.remove_canvas(OWNER, None, "a")
    await store.remove_canvas(OTHER, None, "b")
    assert [one.id for one in await store.canvases(OWNER, None)] == ["b"]
    assert [one.id for one in await store.canvases(OWNER, "ws1")] == ["a", "b"]


async def test_what_has_expired_is_forgotten_everywhere(store: ControlStore) -> None:
    ends = replace(make_canvas("ends"), expires=NOW + SECOND)
    for one in (ends, replace(ends, owner=OTHER, scope="ws1"), make_canvas("stays")):
        await store.put_canvas(one, "text")
    await store.remove_canvases(NOW)
    assert [one.id for one in await store.canvases(OWNER, None)] == ["ends", "stays"]
    await store.remove_canvases(NOW + SECOND)
    assert [one.id for one in await store.canvases(OWNER, None)] == ["stays"]
    assert await store.canvases(OTHER, "ws1") == []
