"""Shares on fakes: what they open, and what they are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.boxes.presence import expiry
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import (
    Ambiguous,
    BadRequest,
    BoxdError,
    Confidential,
    Forbidden,
    InvalidKey,
    InvalidShare,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from boxd.model.box import BoxState
from boxd.principal import Principal
from boxd.secret import Secret, digest
from tests.harness.simulation.turns import wait_turns
from tests.harness.simulation.world import ALICE, BOB, SCOPED, World
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from boxd.model.access.share import Share
    from boxd.operations import Operations

DAY = timedelta(days=1)


async def minted(
    ops: Operations, ref: str = "web", ttl: timedelta | None = None
) -> tuple[Share, Secret]:
    """A share of one of Alice's boxes, which is made if it is not there, and its token."""
    await ops.boxes.up(ALICE, ref)
    one, token = await ops.shares.create_share(ALICE, ref, ttl=ttl)
    return one.share, token


async def refusal(ops: Operations, token: Secret) -> str:
    """What the holder of a token that is good for nothing is told."""
    with pytest.raises(InvalidShare) as refused:
        await ops.shares.principal_of_share(token)
    return str(refused.value)


async def visit(ops: Operations, token: Secret) -> None:
    """Holds the shared box until that is ended."""
    holder = await ops.shares.principal_of_share(token)
    async with ops.shares.attach_shared(holder, why="shell"):
        await asyncio.Event().wait()


async def test_a_share_opens_its_box_and_is_stored_as_a_hash(world: World, ops: Operations) -> None:
    box = await ops.boxes.up(ALICE, "ws1/web")
    await ops.boxes.up(ALICE, "other")
    one, token = await ops.shares.create_share(ALICE, "web", "ws1", ttl=DAY)
    text = token.reveal()
    assert len(text) == len("svcs_") + 32
    assert int(text.removeprefix("svcs_"), 16) >= 0
    assert text not in repr(world.store.__dict__)
    assert text.removeprefix("svcs_") not in repr(world.store.__dict__)
    assert await world.store.find_share(digest(text)) == one.share
    holder = await ops.shares.principal_of_share(token)
    assert holder == Principal(
        *(ALICE.owner, None, "share", one.share.id), box=box.id, expires=world.clock.now() + DAY
    )
    async with ops.shares.attach_shared(holder, why="shell") as attachment:
        assert attachment.box.id == box.id
        assert world.lifecycle.attachments.why(box.id) == {"shared shell": 1}
    await ops.close()
    [listed] = await ops.shares.list_shares(ALICE)
    assert listed.ref == "ws1/web"
    assert listed.share == replace(one.share, last_used=world.clock.now())


async def test_a_holder_has_one_box_and_nothing_else(ops: Operations) -> None:
    _, token = await minted(ops)
    holder = await ops.shares.principal_of_share(token)
    await ops.boxes.up(ALICE, "other")
    for ref in ("other", "ws1/web", "absent"):
        with pytest.raises(NotFound):
            await ops.directory.resolve(holder, ref)
    for refused in (
        ops.boxes.list_boxes(holder),
        ops.boxes.up(holder, "new"),
        ops.boxes.remove(holder, "web"),
        ops.boxes.suspend(holder, "web"),
        ops.boxes.pin(holder, "web", span=DAY),
        ops.shares.create_share(holder, "web", ttl=None),
        ops.shares.list_shares(holder),
        ops.shares.remove_share(holder, "0"),
        ops.keys.create_key(holder, "key", scope=None, ttl=None),
    ):
        with pytest.raises(Forbidden):
            await refused


async def test_all_tokens_that_are_good_for_nothing_are_told_the_same(
    world: World, ops: Operations
) -> None:
    first, revoked = await minted(ops)
    (_, expired), (_, removed) = await minted(ops, ttl=DAY), await minted(ops, "gone")
    _, good = await minted(ops)
    await ops.shares.remove_share(ALICE, first.id)
    await ops.boxes.remove(ALICE, "gone")
    world.clock.turn(DAY)
    text = good.reveal()
    bad = [
        *(revoked, expired, removed),
        *map(Secret, ("", "svcs_", text[:-1], text + "0", text.upper(), text + "\n", "\udc80")),
        *map(Secret, ("svcs_" + "0" * 32, text.removeprefix("svcs_"), "svcs_" + "\u0661" * 32)),
    ]
    assert len({await refusal(ops, token) for token in bad}) == 1
    await ops.shares.principal_of_share(good)


async def test_a_box_that_goes_while_it_is_looked_for_is_a_share_that_is_over(
    ops: Operations,
) -> None:
    _, token = await minted(ops)
    holder = await ops.shares.principal_of_share(token)
    await ops.boxes.remove(ALICE, "web")
    with pytest.raises(InvalidShare):
        async with ops.shares.attach_shared(holder, why="shell"):
            pytest.fail("nobody may come in")


async def test_a_share_wakes_its_box(sleepy: World) -> None:
    ops = sleepy.operations
    _, token = await minted(ops)
    assert (await ops.boxes.suspend(ALICE, "web")).state == BoxState.SUSPENDED
    async with ops.shares.attach_shared(await ops.shares.principal_of_share(token), why="shell"):
        assert (await ops.directory.resolve(ALICE, "web")).state is BoxState.RUNNING


async def test_the_environment_of_an_owner_is_not_for_holders(ops: Operations) -> None:
    _, token = await minted(ops)
    await ops.secrets.set_secret(ALICE, "TOKEN", Secret("of the owner"), tier="account")
    async with ops.boxes.attach(ALICE, BoxAccess("web", kind="reference", why="shell")) as own:
        assert own.env == {"TOKEN": "of the owner"}
    async with ops.shares.attach_shared(
        await ops.shares.principal_of_share(token), why="shell"
    ) as shared:
        assert shared.env == {}


@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_what_a_share_holds_open_ends_with_it(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(expiry, "LOOK_EVERY_S", 0.01)
    (mine, token), (_, other) = await minted(ops, ttl=DAY), await minted(ops)
    visits = [asyncio.create_task(visit(ops, one)) for one in (token, token, other)]
    count = world.lifecycle.attachments.count
    await until(lambda: count(mine.box_id) == 3)
    if how == "revoked":
        assert (await ops.shares.remove_share(ALICE, mine.id[:12])).share.id == mine.id
    else:
        world.clock.turn(DAY)
    for ended in visits[:2]:
        with pytest.raises(InvalidKey, match=f"this share link (was|has) {how}"):
            await asyncio.wait_for(ended, 30)
    assert count(mine.box_id) == 1
    visits[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await visits[2]


async def test_a_share_that_is_revoked_while_its_holder_comes_in_opens_nothing(
    world: World, ops: Operations
) -> None:
    _, token = await minted(ops)
    holder = await ops.shares.principal_of_share(token)
    await ops.shares.remove_share(ALICE, holder.key_id or "")
    with pytest.raises(InvalidKey, match="revoked"):
        async with ops.shares.attach_shared(holder, why="shell"):
            pytest.fail("nobody may come in")


async def test_what_a_share_holds_open_ends_also_without_the_database(
    world: World, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, token = await minted(ops)
    held = asyncio.create_task(visit(ops, token))
    await until(lambda: world.lifecycle.attachments.count(mine.box_id) == 1)

    async def out(_share_id: str) -> None:
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(world.store, "remove_share", out)
    with pytest.raises(Unavailable):
        await ops.shares.remove_share(ALICE, mine.id)
    with pytest.raises(InvalidKey):
        await asyncio.wait_for(held, 30)


async def test_bad_shares_are_refused(world: World, ops: Operations) -> None:
    mine, _ = await minted(ops)
    for ttl in (timedelta(0), -DAY):
        with pytest.raises(BadRequest, match="positive"):
            await ops.shares.create_share(ALICE, "web", ttl=ttl)
    with pytest.raises(NotFound):
        await ops.shares.create_share(BOB, "web", ttl=None)
    with pytest.raises(Forbidden):
        await ops.shares.create_share(SCOPED, "web", ttl=None)
    assert await ops.shares.list_shares(BOB) == []
    for id_ in (mine.id, mine.id[:4]):
        with pytest.raises(NotFound):
            await ops.shares.remove_share(BOB, id_)
    for id_ in ("", "f" * 32, mine.id + "0", "web", "\x1b"):
        with pytest.raises(NotFound, match="no share"):
            await ops.shares.remove_share(ALICE, id_)
    box = await ops.directory.resolve(ALICE, "web")
    await world.store.change_box(box.id, confidential=True)
    with pytest.raises(Confidential, match="ssh -J jump@HOST root@"):
        await ops.shares.create_share(ALICE, "web", ttl=None)


async def test_shares_are_listed_by_box_and_ambiguous_ids_are_refused(ops: Operations) -> None:
    for ref in ("web", "web", "ws1/web"):
        await minted(ops, ref)
    assert sorted(one.ref for one in await ops.shares.list_shares(ALICE)) == [
        "web",
        "web",
        "ws1/web",
    ]
    assert [one.ref for one in await ops.shares.list_shares(ALICE, "web", "ws1")] == ["ws1/web"]
    with pytest.raises(NotFound):
        await ops.shares.list_shares(ALICE, "nothing")
    # Sixteen digits, and one more share than that.
    for _ in range(14):
        await ops.shares.create_share(ALICE, "web", ttl=None)
    ids = [one.share.id for one in await ops.shares.list_shares(ALICE)]
    first = next(id_[0] for id_ in ids if sum(other[0] == id_[0] for other in ids) > 1)
    with pytest.raises(Ambiguous) as refused:
        await ops.shares.remove_share(ALICE, first)
    assert all((id_ in str(refused.value)) == (id_[0] == first) for id_ in ids)
    assert len(await ops.shares.list_shares(ALICE)) == 17


@pytest.fixture
async def frugal(tmp_path: Path) -> AsyncIterator[World]:
    """A core where everybody may have three shares."""
    made = World(tmp_path, tier=lambda tier: replace(tier, shares=3))
    await made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_living_shares_are_limited(frugal: World) -> None:
    ops = frugal.operations
    for ttl in (DAY, DAY, None):
        await minted(ops, ttl=ttl)
    with pytest.raises(QuotaExceeded, match="3 shares per owner"):
        await ops.shares.create_share(ALICE, "web", ttl=None)
    frugal.clock.turn(DAY)
    assert len(await ops.shares.list_shares(ALICE)) == 3
    await minted(ops)
    assert [one.share.expires for one in await ops.shares.list_shares(ALICE)] == [None, None]


async def test_shares_that_are_made_at_once_are_counted_one_by_one(
    frugal: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = frugal.operations
    await ops.boxes.up(ALICE, "web")
    wait_turns(monkeypatch, frugal.store, "shares", "add_share")
    made = await asyncio.gather(
        *(ops.shares.create_share(ALICE, "web", ttl=None) for _ in range(9)), return_exceptions=True
    )
    assert sum(isinstance(one, BoxdError) for one in made) == 6
    assert len(await ops.shares.list_shares(ALICE)) == 3
