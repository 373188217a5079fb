"""Retries: which errors are retried, and the deadline."""

from __future__ import annotations

import asyncio

import pytest

from wrkfs.data.retry import MAX_DELAY, backoff, retrying
from wrkfs.errors import Unavailable


class Flaky:
    """Fails a number of times."""

    def __init__(self, failures: int) -> None:
        self.calls = 0
        self._failures = failures

    async def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise ConnectionError
        return self.calls


def transient(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


async def no_sleep(_seconds: float) -> None:
    await asyncio.sleep(0)


async def test_transient_errors_are_tried_again() -> None:
    assert await retrying(Flaky(5), transient, "x", sleep=no_sleep) == 6


async def test_permanent_errors_pass_at_once() -> None:
    calls = 0

    async def fail() -> None:
        nonlocal calls
        calls += 1
        raise KeyError

    with pytest.raises(KeyError):
        await retrying(fail, transient, "x", sleep=no_sleep)
    assert calls == 1


async def test_the_deadline_ends_it_with_the_last_error_as_cause() -> None:
    with pytest.raises(Unavailable, match="PUT x") as caught:
        await retrying(Flaky(10**9), transient, "PUT x", deadline=0.05, sleep=no_sleep)
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_the_deadline_ends_an_attempt_that_hangs() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Unavailable):
        await retrying(hang, transient, "x", deadline=0.02)


def test_backoff_is_bounded() -> None:
    assert all(0 <= backoff(attempt) <= MAX_DELAY for attempt in range(2000))
