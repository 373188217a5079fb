"""API keys on fakes: what they open, and what they are refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import (
    BadName,
    BadRequest,
    Conflict,
    Forbidden,
    InvalidKey,
    NotFound,
    QuotaExceeded,
)
from boxd.principal import Principal
from tests.harness.simulation.turns import wait_turns
from tests.harness.simulation.world import ALICE, BOB, World

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.operations import Operations


async def test_key_works_and_is_stored_as_a_hash(world: World, ops: Operations) -> None:
    key, secret = await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)
    text = secret.reveal()
    assert text.startswith("svc_")
    assert len(text) == 44
    assert int(text[4:], 16) >= 0
    assert await ops.keys.principal_of_key(text) == Principal(ALICE.owner, None, "api_key", key.id)
    assert text not in repr(world.store.__dict__)
    assert await ops.keys.list_keys(ALICE) == [replace(key, last_used=None)]
    assert await ops.keys.list_keys(BOB) == []


async def test_failures_of_keys_are_one(world: World, ops: Operations) -> None:
    _, revoked = await ops.keys.create_key(ALICE, "revoked", scope=None, ttl=None)
    _, expired = await ops.keys.create_key(ALICE, "expired", scope=None, ttl=timedelta(hours=1))
    assert (
        await ops.keys.principal_of_key(expired.reveal())
    ).expires == world.clock.now() + timedelta(hours=1)
    await ops.keys.remove_key(ALICE, "revoked")
    world.clock.turn(timedelta(hours=1))
    bad = [None, "", "svc_" + "0" * 40, "x" * 5000, "\udc80", revoked.reveal(), expired.reveal()]
    texts = set()
    for presented in bad:
        with pytest.raises(InvalidKey) as refused:
            await ops.keys.principal_of_key(presented)
        texts.add(str(refused.value))
    assert texts == {"invalid API key"}


async def test_bad_keys_are_refused(ops: Operations) -> None:
    for ttl in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(BadRequest, match="positive"):
            await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=ttl)
    with pytest.raises(BadName):
        await ops.keys.create_key(ALICE, "a\nb", scope=None, ttl=None)
    await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)
    with pytest.raises(Conflict, match="laptop"):
        await ops.keys.create_key(ALICE, "laptop", scope=None, ttl=None)
    with pytest.raises(NotFound):
        await ops.keys.remove_key(ALICE, "other")


async def test_keys_are_limited(tmp_path: Path) -> None:
    world = World(tmp_path, tier=lambda tier: replace(tier, keys=1, workspaces=1))
    await world.operations.workspaces.create_workspace(ALICE, "ws1")
    await world.operations.keys.create_key(ALICE, "one", scope="ws1", ttl=None)
    with pytest.raises(QuotaExceeded, match="1 API keys"):
        await world.operations.keys.create_key(ALICE, "two", scope=None, ttl=None)
    await world.start()
    await world.operations.boxes.up(ALICE, "ws1/web")
    with pytest.raises(QuotaExceeded, match="1 workspaces"):
        await world.operations.boxes.up(ALICE, "ws2/web")
    await world.close()


async def test_keys_that_are_made_at_once_are_counted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, tier=lambda tier: replace(tier, keys=3))
    wait_turns(monkeypatch, world.store, "keys", "add_key")
    create = world.operations.keys.create_key
    made = (create(ALICE, f"k{number}", scope=None, ttl=None) for number in range(9))
    await asyncio.gather(*made, return_exceptions=True)
    assert len(await world.store.keys(ALICE.owner)) == 3


async def test_scoped_key_lives_in_its_workspace(ops: Operations) -> None:
    with pytest.raises(NotFound, match="no workspace 'ws1'; see: ws ls"):
        await ops.keys.create_key(ALICE, "ci", scope="ws1", ttl=None)
    await ops.workspaces.create_workspace(ALICE, "ws1")
    with pytest.raises(NotFound, match=r"no workspace 'wss1'; did you mean ws1\?"):
        await ops.keys.create_key(ALICE, "ci", scope="wss1", ttl=None)
    _, secret = await ops.keys.create_key(ALICE, "ci", scope="ws1", ttl=None)
    scoped = await ops.keys.principal_of_key(secret.reveal())
    mine = await ops.boxes.up(scoped, "web")
    assert mine.ref == "ws1/web"
    outside = await ops.boxes.up(ALICE, "web")
    for call in ("ws2/web", "ws2/new"):
        with pytest.raises(Forbidden, match="ws1"):
            await ops.directory.resolve(scoped, call)
        with pytest.raises(Forbidden, match="ws1"):
            await ops.boxes.up(scoped, call)
    for reference in (outside.id, outside.id[:12]):
        with pytest.raises(NotFound):
            await ops.directory.resolve(scoped, reference)
    for refused in (
        ops.keys.create_key(scoped, "x", scope=None, ttl=None),
        ops.keys.list_keys(scoped),
        ops.keys.remove_key(scoped, "ci"),
    ):
        with pytest.raises(Forbidden):
            await refused
