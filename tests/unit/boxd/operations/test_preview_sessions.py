"""Sessions of browsers on fakes: what their cookie opens, and when no more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.authz import Action, may
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Forbidden, InvalidKey, NotFound
from boxd.operations import preview_sessions
from boxd.secret import Secret, digest
from tests.doubles.control_store import MemoryStore
from tests.harness.simulation.world import ALICE, BOB, World

if TYPE_CHECKING:
    from boxd.model.box import Box
    from boxd.operations import Operations
    from boxd.principal import Principal

SECOND = timedelta(seconds=1)


async def a_key(
    ops: Operations, name: str = "laptop", scope: str | None = None, ttl: timedelta | None = None
) -> Principal:
    """Whom a fresh API key of Alice's stands for."""
    _, secret = await ops.keys.create_key(ALICE, name, scope=scope, ttl=ttl)
    return await ops.keys.principal_of_key(secret.reveal())


async def a_box(ops: Operations, spec: str = "web") -> Box:
    """A box of Alice's."""
    await ops.boxes.up(ALICE, spec)
    return await ops.directory.resolve(ALICE, spec)


async def opened(ops: Operations, ref: str = "web", port: int = 80) -> str:
    """A cookie for a port of a box, by a key of its own."""
    box = await a_box(ops, ref)
    key = await a_key(ops, f"for-{box.id}")
    return (await ops.preview_sessions.open_proxy_session(key, box, port, None)).reveal()


async def principal_of(
    ops: Operations, cookie: str, ref: str, port: int, host: str | None
) -> Principal:
    """Whom a cookie stands for; the box is the principal's one."""
    p, box = await ops.preview_sessions.opened_by_cookie(cookie, ref, port, host)
    assert box.id == p.box
    return p


async def test_a_cookie_opens_its_port_of_its_box(ops: Operations) -> None:
    box, key = await a_box(ops), await a_key(ops)
    cookie = await ops.preview_sessions.open_proxy_session(key, box, 80, None)
    assert len(cookie.reveal()) == 43
    for ref in ("web", box.id, box.id[:6]):
        p = await principal_of(ops, cookie.reveal(), ref, 80, None)
        assert (p.owner, p.via, p.box, p.key_id) == (ALICE.owner, "cookie", box.id, key.key_id)


async def test_nowhere_else(ops: Operations) -> None:
    cookie = await opened(ops)
    other = await a_box(ops, "other")
    places: list[tuple[str, int, str | None]] = [
        ("web", 81, None),
        ("other", 80, None),
        (other.id, 80, None),
        ("absent", 80, None),
        ("ws1/web", 80, None),
        ("not a name!", 80, None),
        ("web", 80, "web-80.preview.test"),
    ]
    for ref, port, host in places:
        with pytest.raises(InvalidKey, match=r"^invalid API key$"):
            await principal_of(ops, cookie, ref, port, host)


async def test_a_cookie_of_a_preview_host_opens_that_host(ops: Operations) -> None:
    box, key = await a_box(ops), await a_key(ops)
    host = "web-80.preview.test"
    cookie = (await ops.preview_sessions.open_proxy_session(key, box, 80, host)).reveal()
    assert (await principal_of(ops, cookie, "web", 80, host)).box == box.id
    for other in (None, f"{box.id}-80.preview.test"):
        with pytest.raises(InvalidKey):
            await principal_of(ops, cookie, "web", 80, other)


@pytest.mark.parametrize("value", ["", "x", "A" * 43, "A" * 42 + "=", "A" * 44, "ä" * 43])
async def test_what_is_no_cookie(ops: Operations, value: str) -> None:
    await opened(ops)
    with pytest.raises(InvalidKey):
        await principal_of(ops, value, "web", 80, None)


async def test_a_cookie_ends_after_an_hour_or_with_its_key(world: World, ops: Operations) -> None:
    box = await a_box(ops)
    long = await ops.preview_sessions.open_proxy_session(await a_key(ops), box, 80, None)
    brief = await a_key(ops, "brief", ttl=timedelta(minutes=5))
    short = await ops.preview_sessions.open_proxy_session(brief, box, 80, None)
    world.clock.turn(299 * SECOND)
    for cookie in (long, short):
        await principal_of(ops, cookie.reveal(), "web", 80, None)
    world.clock.turn(1 * SECOND)
    await principal_of(ops, long.reveal(), "web", 80, None)
    with pytest.raises(InvalidKey):
        await principal_of(ops, short.reveal(), "web", 80, None)
    world.clock.turn(3300 * SECOND)
    with pytest.raises(InvalidKey):
        await principal_of(ops, long.reveal(), "web", 80, None)


async def test_a_cookie_goes_with_its_key(ops: Operations) -> None:
    box = await a_box(ops)
    cookie = await ops.preview_sessions.open_proxy_session(await a_key(ops), box, 80, None)
    await ops.keys.remove_key(ALICE, "laptop")
    await a_key(ops)
    with pytest.raises(InvalidKey):
        await principal_of(ops, cookie.reveal(), "web", 80, None)


async def test_a_cookie_goes_with_its_box(ops: Operations) -> None:
    cookie = await opened(ops)
    await ops.boxes.remove(ALICE, "web")
    with pytest.raises(InvalidKey):
        await principal_of(ops, cookie, "web", 80, None)
    await a_box(ops)
    with pytest.raises(InvalidKey):
        await principal_of(ops, cookie, "web", 80, None)


async def test_a_box_that_changes_hands_takes_no_cookie_along(
    world: World, ops: Operations
) -> None:
    cookie = await opened(ops)
    box = await ops.directory.resolve(ALICE, "web")
    assert isinstance(world.store, MemoryStore)
    world.store._boxes[box.id] = replace(box, owner=BOB.owner)
    with pytest.raises(InvalidKey):
        await principal_of(ops, cookie, "web", 80, None)


async def test_a_scoped_key_leaves_its_scope_in_the_cookie(ops: Operations) -> None:
    inside, outside = await a_box(ops, "ws1/web"), await a_box(ops, "web")
    key = await a_key(ops, scope="ws1")
    cookie = (await ops.preview_sessions.open_proxy_session(key, inside, 80, None)).reveal()
    p = await principal_of(ops, cookie, "web", 80, None)
    assert (p.scope, p.box) == ("ws1", inside.id)
    with pytest.raises(InvalidKey):
        await principal_of(ops, cookie, outside.id, 80, None)


async def test_only_api_keys_open_sessions(ops: Operations) -> None:
    box, cookie = await a_box(ops), await opened(ops)
    visitor = await principal_of(ops, cookie, "web", 80, None)
    for p in (ALICE, visitor):
        with pytest.raises(Forbidden):
            await ops.preview_sessions.open_proxy_session(p, box, 80, None)


async def test_nothing_opens_a_box_or_by_a_key_that_is_gone(ops: Operations) -> None:
    box, key = await a_box(ops), await a_key(ops)
    await ops.keys.remove_key(ALICE, "laptop")
    with pytest.raises(NotFound):
        await ops.preview_sessions.open_proxy_session(key, box, 80, None)
    key = await a_key(ops)
    await ops.boxes.remove(ALICE, "web")
    with pytest.raises(NotFound):
        await ops.preview_sessions.open_proxy_session(key, box, 80, None)


async def test_a_cookie_may_see_and_attach_its_box_and_nothing_else(ops: Operations) -> None:
    await a_box(ops, "other")
    p = await principal_of(ops, await opened(ops), "web", 80, None)
    allowed = {action for action in Action if may(p, action)}
    assert allowed == {Action.SHOW_BOX, Action.ATTACH_BOX}
    with pytest.raises(NotFound):
        await ops.directory.resolve(p, "other")


async def test_a_blocked_owner_is_told_so(world: World, ops: Operations) -> None:
    cookie = await opened(ops)
    await world.access_policy.block(ALICE.owner)
    with pytest.raises(Forbidden):
        await principal_of(ops, cookie, "web", 80, None)


async def test_the_oldest_sessions_make_room(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview_sessions, "MAX_SESSIONS", 2)
    box, key = await a_box(ops), await a_key(ops)
    cookies: list[Secret] = []
    for _ in range(3):
        cookies.append(await ops.preview_sessions.open_proxy_session(key, box, 80, None))
        world.clock.turn(1 * SECOND)
    with pytest.raises(InvalidKey):
        await principal_of(ops, cookies[0].reveal(), "web", 80, None)
    for cookie in cookies[1:]:
        await principal_of(ops, cookie.reveal(), "web", 80, None)
    world.clock.turn(3600 * SECOND)
    last = await ops.preview_sessions.open_proxy_session(key, box, 80, None)
    assert isinstance(world.store, MemoryStore)
    stored = world.store._proxy_sessions.values()
    assert [sha256 for _, sha256 in stored] == [digest(last.reveal())]


async def test_a_box_that_was_found_for_somebody_else_is_not_attached(
    world: World, ops: Operations
) -> None:
    box, other = await a_box(ops), await a_box(ops, "other")
    inside = await a_box(ops, "ws1/web")
    visitor = await principal_of(ops, await opened(ops), "web", 80, None)
    scoped = await a_key(ops, "scoped", scope="ws1")
    for p, found in ((BOB, box), (visitor, other), (scoped, box), (visitor, inside)):
        with pytest.raises(NotFound):
            async with ops.boxes.attach(p, BoxAccess(found, kind="reference", why="proxy")):
                raise AssertionError(p)
        assert world.lifecycle.attachments.count(found.id) == 0
    async with ops.boxes.attach(visitor, BoxAccess(box, kind="reference", why="proxy")) as held:
        assert held.box.id == box.id
    await ops.boxes.remove(ALICE, "web")
    with pytest.raises(NotFound):
        async with ops.boxes.attach(visitor, BoxAccess(box, kind="reference", why="proxy")):
            raise AssertionError
