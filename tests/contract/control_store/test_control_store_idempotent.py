"""One suite for every ControlStore: requests with an idempotency key."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from boxd.model.idempotent import IdempotentRequest
from tests.harness.control_store.rows import NOW, OTHER, OWNER

if TYPE_CHECKING:
    from boxd.store.interface import ControlStore

SECOND = timedelta(seconds=1)


def make_request(key: int = 1, attempt: str = "a", owner: str = OWNER) -> IdempotentRequest:
    """A request that has not ended."""
    return IdempotentRequest(owner, bytes([key]) * 32, b"r" * 32, attempt, NOW)


async def test_the_first_attempt_starts_and_the_next_one_finds_it(
    control_store: ControlStore,
) -> None:
    first, second = make_request(), make_request(attempt="b")
    assert await control_store.start_request(first) == first
    assert await control_store.start_request(first) == first
    assert await control_store.start_request(second) == first
    foreign = make_request(owner=OTHER)
    assert await control_store.start_request(foreign) == foreign
    await control_store.finish_request(second, 200, b"not its own")
    await control_store.finish_request(first, 201, b"sealed")
    assert await control_store.start_request(second) == replace(first, status=201, sealed=b"sealed")


async def test_a_dropped_attempt_frees_its_key(control_store: ControlStore) -> None:
    first, second = make_request(), make_request(attempt="b")
    await control_store.start_request(first)
    await control_store.drop_request(second)
    assert await control_store.start_request(second) == first
    await control_store.drop_request(first)
    await control_store.drop_request(first)
    assert await control_store.start_request(second) == second


async def test_old_requests_and_the_oldest_beyond_the_limit_are_deleted(
    control_store: ControlStore,
) -> None:
    requests = [replace(make_request(number), started=NOW + number * SECOND) for number in range(5)]
    foreign = make_request(owner=OTHER)
    for one in (*requests, foreign):
        await control_store.start_request(one)
    await control_store.trim_requests(OWNER, NOW + SECOND, 2)
    again = [replace(one, attempt="b") for one in requests]
    stored = [await control_store.start_request(one) for one in again]
    assert stored == [*again[:3], *requests[3:]]
    assert await control_store.start_request(replace(foreign, attempt="b")) == foreign
