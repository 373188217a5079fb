"""Requests with an idempotency key are done once."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from boxd.errors import BadRequest, Conflict
from boxd.model.idempotent import IdempotentRequest
from boxd.operations.idempotent import MAX_BODY, Outcome
from boxd.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from boxd.operations import Operations
    from tests.harness.simulation.world import World

P = Principal("SHA256:alice", None, "api_key", "key-1")


class Work:
    """Counts how often it is done."""

    def __init__(self, status: int = 201, body: str = "{}") -> None:
        self.status, self.body, self.count = status, body, 0

    async def __call__(self) -> Outcome:
        """Do it once more."""
        self.count += 1
        return Outcome(self.status, self.body)


def once(
    ops: Operations, work: Callable[[], Awaitable[Outcome]], key: str = "k", p: Principal = P
) -> Awaitable[Outcome]:
    """One request with content `x`."""
    return ops.idempotent.once(p, key, b"x", work)


async def test_the_second_request_gets_the_first_response(ops: Operations) -> None:
    work = Work(body='{"id": 1}')
    assert await once(ops, work) == Outcome(201, '{"id": 1}')
    assert await once(ops, work) == Outcome(201, '{"id": 1}', replayed=True)
    assert work.count == 1
    await once(ops, work, key="other")
    await once(ops, work, p=replace(P, key_id="key-2"))
    assert work.count == 3


async def test_another_content_is_refused(ops: Operations) -> None:
    await once(ops, Work())
    with pytest.raises(BadRequest, match="had another content"):
        await ops.idempotent.once(P, "k", b"y", Work())


@pytest.mark.parametrize("key", ["", " ", "a b", "\n", "é", "x" * 256])
async def test_a_bad_key_is_refused(ops: Operations, key: str) -> None:
    with pytest.raises(BadRequest, match="1 to 255 printable"):
        await once(ops, Work(), key=key)


async def test_a_failure_frees_the_key(ops: Operations) -> None:
    async def fail() -> Outcome:
        raise Conflict("no")

    with pytest.raises(Conflict, match=r"^no$"):
        await once(ops, fail)
    work = Work()
    assert await once(ops, work) == Outcome(201, "{}")


@pytest.mark.parametrize("work", [Work(status=404), Work(body="x" * (MAX_BODY + 1))])
async def test_refusals_and_long_responses_are_not_remembered(ops: Operations, work: Work) -> None:
    await once(ops, work)
    await once(ops, work)
    assert work.count == 2


async def test_a_request_that_runs_is_not_started_twice(ops: Operations) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> Outcome:
        begun.set()
        await go.wait()
        return Outcome(201, "{}")

    first = asyncio.ensure_future(once(ops, slow))
    await begun.wait()
    with pytest.raises(Conflict, match="still running"):
        await once(ops, Work())
    go.set()
    assert await first == Outcome(201, "{}")


async def test_an_outcome_that_a_stop_lost_is_not_made_up(world: World) -> None:
    """The service died between the start of a request and its end."""
    key, content = hashlib.sha256(b"key-1\0k").digest(), hashlib.sha256(b"x").digest()
    now = world.clock.now()
    await world.store.start_request(IdempotentRequest(P.owner, key, content, "dead", now))
    with pytest.raises(Conflict, match="is not known"):
        await once(world.operations, Work())
    world.clock.turn(timedelta(hours=25))
    assert await once(world.operations, Work()) == Outcome(201, "{}")
