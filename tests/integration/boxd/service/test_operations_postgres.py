"""Operations on a real PostgreSQL: what a new daemon finds, and races the database decides."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import Conflict, InvalidKey
from boxd.model.box import BoxState
from boxd.store.postgres.store import PostgresStore
from tests.harness.simulation.world import ALICE, BOB, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

_T = TypeVar("_T")


class Repeating(PostgresStore):
    """Sends every statement twice, as when the answer to the first one was lost."""

    async def _retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        await super()._retry(attempt)
        return await super()._retry(attempt)


@pytest.fixture
async def world(tmp_path: Path, pg_database: str) -> AsyncIterator[World]:
    """A started core on PostgreSQL and a fake host."""
    store = PostgresStore(pg_database)
    await store.start()
    made = World(tmp_path, store=store)
    await made.start()
    try:
        yield made
    finally:
        await made.close()
        await store.close()


async def test_boxes_and_keys_survive_the_daemon(world: World) -> None:
    before = await world.operations.boxes.up(ALICE, "ws1/web^2h+10m")
    key, secret = await world.operations.keys.create_key(
        ALICE, "ci", scope="ws1", ttl=timedelta(days=1)
    )
    await world.restart()
    [after] = await world.operations.boxes.list_boxes(ALICE, everywhere=True)
    assert after == before
    scoped = await world.operations.keys.principal_of_key(secret.reveal())
    assert (scoped.owner, scoped.scope, scoped.key_id) == (ALICE.owner, "ws1", key.id)
    async with world.operations.boxes.attach(
        scoped, BoxAccess("web", kind="reference", why="exec")
    ) as held:
        assert held.box.id == before.id


async def test_concurrent_connects_make_one_box_each(world: World) -> None:
    views = await asyncio.gather(
        *(world.operations.boxes.up(who, "web") for who in (ALICE, BOB) for _ in range(20))
    )
    assert len({view.id for view in views}) == 2
    assert world.steps.done.count("backend.create") == 2


async def test_two_stores_cannot_take_one_name(world: World, pg_database: str) -> None:
    await world.operations.boxes.up(ALICE, "web")
    box = await world.operations.directory.resolve(ALICE, "web")
    other = PostgresStore(pg_database)
    await other.start()
    try:
        results = await asyncio.gather(
            world.store.change_state(box.id, BoxState.RUNNING, BoxState.SUSPENDING, "one"),
            other.change_state(box.id, BoxState.RUNNING, BoxState.SUSPENDING, "two"),
            return_exceptions=True,
        )
    finally:
        await other.close()
    assert sorted(type(one).__name__ for one in results) == ["Box", Conflict.__name__]


async def test_revocation_whose_answer_was_lost_ends_what_the_key_holds(
    tmp_path: Path, pg_database: str
) -> None:
    store = Repeating(pg_database)
    await store.start()
    world = World(tmp_path, store=store)
    await world.start()
    try:
        key, secret = await world.operations.keys.create_key(ALICE, "lost", scope=None, ttl=None)
        who = await world.operations.keys.principal_of_key(secret.reveal())

        async def revoked_while_holding() -> None:
            async with world.operations.boxes.attach(
                who, BoxAccess("web", kind="spec", why="exec")
            ):
                await world.operations.keys.remove_key(ALICE, key.name)
                await asyncio.wait_for(asyncio.Event().wait(), 10)

        with pytest.raises(InvalidKey):
            await revoked_while_holding()
        with pytest.raises(InvalidKey):
            await world.operations.keys.principal_of_key(secret.reveal())
    finally:
        await world.close()
        await store.close()
