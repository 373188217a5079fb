"""The budget of an operation: what is counted, handed over and shown."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.drive.budget import WORKS, Counted
from benchmarks.drive.costs import UNITS, Cost, lines
from benchmarks.drive.counters import ASK, Counters
from benchmarks.peers.ours import Ours
from benchmarks.report import machine, revision, write
from tests.harness.wait import until
from wrkfs.config import StoreConfig, VolumeConfig

if TYPE_CHECKING:
    from pathlib import Path


class Link:
    """Something with calls to count."""

    async def fetch(self, name: str, args: tuple[int, ...]) -> int:
        """One of many."""
        if name == "bad":
            raise ValueError(name)
        return sum(args)

    async def prepare(self) -> str:
        """One of its own."""
        return "prepared"


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Around `Link`."""
    for method in ("fetch", "prepare"):
        monkeypatch.setattr(Link, method, vars(Link)[method])
    made = Counters()
    made.around("database", Link, "fetch")
    made.around("database", Link, "prepare", "(prepare)")
    return made


async def test_calls_are_counted_by_name_also_those_that_fail(counters: Counters) -> None:
    link = Link()
    assert await link.fetch("lookup", (1, 2)) == 3
    assert await link.fetch("lookup", args=(4,)) == 4
    assert await link.prepare() == "prepared"
    with pytest.raises(ValueError, match="bad"):
        await link.fetch("bad", ())
    calls = counters.take()["calls"]["database"]
    assert {name: len(times) for name, times in calls.items()} == {
        "lookup": 2,
        "(prepare)": 1,
        "bad": 1,
    }
    assert all(one >= 0 for times in calls.values() for one in times)


async def test_what_was_taken_is_not_counted_again(counters: Counters) -> None:
    await Link().prepare()
    counters.take()
    found = counters.take()
    assert found["calls"] == {}
    assert set(found["used"]) == {"user_s", "system_s", "switches", "preemptions"}
    assert all(amount >= 0 for amount in found["used"].values())


async def test_counters_are_handed_over_when_they_are_asked_for(
    counters: Counters, tmp_path: Path
) -> None:
    file, before = tmp_path / "counts", signal.getsignal(ASK)
    counters.hand_over(file)
    try:
        await Link().prepare()
        os.kill(os.getpid(), ASK)
        await until(file.exists)
    finally:
        signal.signal(ASK, before)
    assert len(json.loads(file.read_text())["calls"]["database"]["(prepare)"]) == 1


def test_the_counting_mount_is_started_as_ours_is(tmp_path: Path) -> None:
    store = StoreConfig("http://127.0.0.1:1", "bucket", "prefix", "region", "key", "secret")
    volume = VolumeConfig("v", "v", "postgresql://v:p@127.0.0.1/boxd", store)
    (tmp_path / "ours").mkdir()
    ours = list(Ours(volume, tmp_path / "ours", "m").command())
    counted = list(Counted(volume, tmp_path, "m").command())
    at = ours.index("box_guest.mount")
    assert counted[at : at + 2] == ["benchmarks.drive.counted", str(tmp_path / "m.counts")]
    assert len(counted) == len(ours) + 1
    same = [word.replace(str(tmp_path / "ours"), str(tmp_path)) for word in ours[at + 1 :]]
    assert counted[at + 2 :] == same


def cost() -> Cost:
    """Two repetitions."""
    made = Cost("ops/s")
    used = {"user_s": 0.5, "system_s": 0.25, "switches": 10, "preemptions": 1}
    for times in ([100.0, 300.0], [200.0, 400.0, 500.0]):
        calls = {"fuse": {"create": times, "lookup": [1.0]}, "objects": {"PUT": [9000.0]}}
        made.add(100, 2.0 * len(times), 0.5, {"calls": calls, "used": used})
    return made


def test_a_cost_is_told_per_unit() -> None:
    figures = cost().figures()
    assert figures["unit"] == "operation"
    assert figures["units"] == 200
    assert figures["us"] == 50_000
    assert figures["spread"] == [40_000, 60_000]
    assert figures["mount_user_us"] == 5000
    assert figures["mount_system_us"] == 2500
    assert figures["postgresql_us"] == 5000
    assert figures["switches"] == 0.1
    calls = figures["calls"]["fuse"]
    assert list(calls) == ["create", "lookup"]
    assert calls["create"] == {"count": 0.025, "median_us": 300, "us": 7.5}
    assert figures["calls"]["database"] == {}


def test_a_budget_becomes_json_and_tables(tmp_path: Path) -> None:
    failed = Cost("files/s", errors=["there are no wheels"])
    found: dict[str, Any] = {
        "machine": machine(),
        **revision(),
        "repeat": 2,
        "options": [],
        "size": {"files": 1, "tree": 1},
        "works": {"create": cost().figures(), "pip_install": failed.figures()},
    }
    write(tmp_path, "budget", lines(found), found)
    kept = json.loads((tmp_path / "budget.json").read_text())
    assert kept["works"]["create"]["calls"]["objects"]["PUT"]["count"] == 0.01
    text = (tmp_path / "budget.md").read_text()
    summary = "| 50,000 | 5,000 | 2,500 | 5,000 | 0.10 | 0.010 | 0.035 | 0.00 | 0.00 | 0.010 |"
    assert f"| create | operation {summary}" in text
    assert "| FUSE requests | create | 0.025 | 300 | 7.5 |" in text
    assert "- pip_install: there are no wheels" in text


def test_every_work_has_a_unit() -> None:
    assert {work.unit for work in WORKS} <= set(UNITS)
