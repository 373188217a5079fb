"""Measuring what boxes use: in turns, bounded, each box for itself."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from boxd.backends.interface import BackendBox, BoxStats
from boxd.boxes.presence import usage
from boxd.boxes.presence.usage import UsageSampler
from boxd.errors import NotFound, Unavailable
from tests.harness.simulation.world import TurnedClock
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.backends.interface import Backend
    from boxd.model.usage import Usage
    from tests.plugins.strict_logs import AssertLogs


class Counters:
    """The part of a backend that is measured."""

    def __init__(self, clock: TurnedClock) -> None:
        self.clock = clock
        self.boxes: dict[str, bool] = {}
        self.cpu_s: dict[str, float] = {}
        self.failing: dict[str, Exception] = {}
        self.hung: set[str] = set()
        self.takes = timedelta(0)
        self.measured: list[str] = []
        self.rounds = 0
        self.at_once = self.most_at_once = 0

    async def list(self) -> list[BackendBox]:
        """All boxes."""
        self.rounds += 1
        if "list" in self.failing:
            raise self.failing["list"]
        return [BackendBox(box_id, running) for box_id, running in self.boxes.items()]

    async def stats(self, box_id: str) -> BoxStats:
        """What the test set."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if box_id in self.hung:
                await asyncio.Event().wait()
            if box_id not in self.boxes:
                raise NotFound(f"the backend has no box {box_id}")
            if box_id in self.failing:
                raise self.failing[box_id]
            self.clock.turn(self.takes)
            self.measured.append(box_id)
            cpu_s = self.cpu_s.get(box_id, 0.0)
            return BoxStats(cpu_s, 2048, 4096, int(self.boxes[box_id]), 10, 20)
        finally:
            self.at_once -= 1


class Measured:
    """A sampler that looks all the time, on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.counters = Counters(self.clock)
        self.sampler = UsageSampler(cast("Backend", self.counters), self.clock)

    def of(self, box_id: str) -> Usage:
        """The last figures, which must be there."""
        found = self.sampler.last(box_id)
        assert found is not None
        return found

    async def round(self) -> None:
        """Waits until every box that may be measured was, and once more."""
        enough = self.counters.rounds + 3
        await until(lambda: self.counters.rounds >= enough)


@pytest_asyncio.fixture
async def measured(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Measured]:
    """See `Measured`."""
    monkeypatch.setattr(usage, "PERIOD", 0.001)
    one = Measured()
    one.sampler.start()
    yield one
    await one.sampler.close()


async def test_figures_of_a_running_box(measured: Measured) -> None:
    measured.counters.boxes["a"] = True
    assert measured.sampler.last("a") is None
    await until(lambda: measured.sampler.last("a"))
    assert measured.of("a").cpu_share is None
    measured.clock.turn(timedelta(seconds=10))
    measured.counters.cpu_s["a"] = 5.0
    await until(lambda: measured.of("a").cpu_s == 5.0)
    assert measured.of("a").to_json() == {
        "at": measured.clock.now().isoformat(),
        "cpu_s": 5.0,
        "cpu_share": 0.5,
        "memory_bytes": 2048,
        "disk_bytes": 4096,
        "pids": 1,
        "net_rx_bytes": 10,
        "net_tx_bytes": 20,
        "oom_kills": 0,
        "saved_memory_bytes": 0,
    }


async def test_counters_that_begin_anew_give_no_share(measured: Measured) -> None:
    measured.counters.boxes["a"], measured.counters.cpu_s["a"] = True, 50.0
    await until(lambda: measured.sampler.last("a"))
    measured.clock.turn(timedelta(seconds=10))
    measured.counters.cpu_s["a"] = 1.0
    await until(lambda: measured.of("a").cpu_s == 1.0)
    assert measured.of("a").cpu_share is None


async def test_one_box_that_fails_stops_no_other(
    measured: Measured, assert_logs: AssertLogs
) -> None:
    with assert_logs("cannot measure the use of resources"):
        measured.counters.failing = {"a": Unavailable("no such cgroup"), "b": KeyError("a bug")}
        measured.counters.boxes |= {"a": True, "b": True, "c": True}
        await until(lambda: measured.sampler.last("c"))
        measured.counters.failing = {}
        measured.clock.turn(timedelta(seconds=10))
        await until(lambda: measured.sampler.last("a") and measured.sampler.last("b"))


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            Unavailable("the engine is away"),
            "cannot measure the use of resources: the engine is away",
        ),
        (ValueError("a record that is no JSON"), "cannot measure the use of resources"),
    ],
)
async def test_a_backend_that_fails_is_asked_again(
    measured: Measured, assert_logs: AssertLogs, failure: Exception, told: str
) -> None:
    with assert_logs(told):
        measured.counters.failing = {"list": failure}
        measured.counters.boxes["a"] = True
        await measured.round()
        measured.counters.failing = {}
        await until(lambda: measured.sampler.last("a"))


async def test_a_box_that_hangs_delays_no_other(measured: Measured) -> None:
    measured.counters.hung = {str(n) for n in range(usage.PARALLEL - 1)}
    measured.counters.boxes |= dict.fromkeys((*measured.counters.hung, "a", "b", "c"), True)
    await until(lambda: all(measured.sampler.last(box_id) for box_id in "abc"))


async def test_a_box_that_hangs_does_not_end_the_rounds(measured: Measured) -> None:
    measured.counters.hung = {"hung"}
    measured.counters.boxes |= dict.fromkeys(("hung", "a"), True)
    for seconds in range(1, 4):
        await until(lambda: measured.sampler.last("a"))
        measured.clock.turn(timedelta(seconds=10))
        measured.counters.cpu_s["a"] = float(seconds)
        await until(lambda: measured.of("a").cpu_s == measured.counters.cpu_s["a"])
    assert measured.counters.at_once == 1


async def test_few_are_measured_at_once(measured: Measured) -> None:
    boxes = [str(n) for n in range(50)]
    measured.counters.boxes |= dict.fromkeys(boxes, True)
    await until(lambda: all(measured.sampler.last(box_id) for box_id in boxes))
    assert measured.counters.most_at_once == usage.PARALLEL


async def test_a_stopped_box_is_measured_once_more(measured: Measured) -> None:
    measured.counters.boxes["a"] = True
    await until(lambda: measured.sampler.last("a"))
    measured.clock.turn(timedelta(seconds=10))
    measured.counters.boxes["a"] = False
    await until(lambda: measured.of("a").pids == 0)
    for _ in range(3):  # looks that found it running may be under way still
        measured.clock.turn(timedelta(seconds=10))
        await measured.round()
    count = len(measured.counters.measured)
    measured.clock.turn(timedelta(seconds=10))
    await measured.round()
    assert len(measured.counters.measured) == count


async def test_a_slow_measurement_is_not_repeated_soon(measured: Measured) -> None:
    measured.counters.takes = timedelta(seconds=2)
    measured.counters.boxes["a"] = True
    await until(lambda: measured.sampler.last("a"))
    measured.clock.turn(timedelta(seconds=2 * usage.REST - 3))
    await measured.round()
    assert len(measured.counters.measured) == 1
    measured.clock.turn(timedelta(seconds=3))
    await until(lambda: len(measured.counters.measured) > 1)


async def test_a_removed_box_is_forgotten(measured: Measured) -> None:
    measured.counters.boxes["a"] = True
    await until(lambda: measured.sampler.last("a"))
    del measured.counters.boxes["a"]
    await until(lambda: measured.sampler.last("a") is None)


async def test_one_box_can_be_measured_now(measured: Measured) -> None:
    await measured.sampler.close()
    measured.counters.boxes["a"] = True
    await measured.sampler.refresh("a")
    assert measured.of("a").memory_bytes == 2048
