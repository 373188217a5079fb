"""How many of a kind there may be in a second, and how long the pauses are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.tunnel import limits
from boxd.tunnel.limits import Bucket, Pauses

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock on."""
    now = [1000.0]
    monkeypatch.setattr("boxd.tunnel.limits.time.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def taken(bucket: Bucket) -> int:
    """How many are left."""
    count = 0
    while bucket.take():
        count += 1
    return count


def test_a_bucket_fills_again_up_to_its_size(step: Callable[[float], None]) -> None:
    bucket = Bucket((4, 10))
    assert taken(bucket) == 10
    step(1)
    assert taken(bucket) == 4
    step(0.5)
    assert taken(bucket) == 2
    step(3600)
    assert taken(bucket) == 10
    step(0.24)
    assert not bucket.take()
    step(0.01)
    assert bucket.take()


def test_pauses_grow_and_are_forgiven(step: Callable[[float], None]) -> None:
    pauses = Pauses()
    assert [pauses.next() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    step(limits.FORGIVEN_S + 1)
    assert pauses.next() == 0.5
    step(1)
    assert pauses.next() == 1
