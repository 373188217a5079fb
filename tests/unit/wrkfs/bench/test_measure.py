"""All workloads in real directories, with real client processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from wrkfs.bench.material import FROM_ALL_PARTS, FROM_PACKAGES, FROM_WHEELS, prepare
from wrkfs.bench.measure import Plan, measure
from wrkfs.bench.place import Size, WorkloadFailed
from wrkfs.bench.target import Directory
from wrkfs.bench.workloads import ALL, BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

TINY = Size(
    files=4,
    entries=5,
    mib=1,
    fsyncs=2,
    tree=6,
    clone=6,
    wheels=1,
    project=30,
    packages=1,
    transactions=3,
)
DOWNLOADED = FROM_WHEELS | FROM_PACKAGES
PREPARED = tuple(work for work in ALL if work.name not in DOWNLOADED)
WITHOUT_NETWORK = PREPARED + tuple(work for work in ALL if work.name in FROM_ALL_PARTS)
"""Works that run here. The searches leave out parts whose material needs the network."""


class Here(Directory):
    """A directory whose caches stay, because other programs use the machine."""

    cooled = 0

    def drop_caches(self) -> None:
        """Counts."""
        self.cooled += 1


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of two small repetitions."""
    material = prepare(tmp_path / "cache", TINY, PREPARED)
    return Plan(TINY, material, 2, WITHOUT_NETWORK, limit=30.0)


def target(path: Path, name: str) -> Here:
    """Return a target with a new directory."""
    (path / name).mkdir()
    made = Here(path / name)
    made.name = name
    return made


def ignore(_text: str) -> None:
    """Ignore progress."""


def test_every_work_gives_a_rate_for_each_target_and_repetition(tmp_path: Path, plan: Plan) -> None:
    targets = [target(tmp_path, "a"), target(tmp_path, "b")]
    found = measure(targets, plan, ignore)
    assert list(found) == [work.name for work in WITHOUT_NETWORK]
    for by_target in found.values():
        for series in by_target.values():
            assert not series.errors
            assert len(series.rates) == 2
            assert min(series.rates) > 0
    assert targets[0].cooled == 2 * sum(work.name.endswith(("cold", "1000")) for work in ALL)


def test_clients_work_side_by_side_in_directories_of_their_own(tmp_path: Path, plan: Plan) -> None:
    both = Plan(TINY, plan.material, 1, (BY_NAME["create"],), clients=2)
    here = target(tmp_path, "a")
    found = measure([here], both, ignore)
    assert len(found["create"]["a"].rates) == 1
    assert sorted(os.listdir(here.path)) == ["one-client0", "one-client1"]
    for client in os.listdir(here.path):
        assert len(os.listdir(here.path / client / "turn0")) == TINY.files


def test_what_fails_is_told_and_stops_nothing(tmp_path: Path, plan: Plan) -> None:
    class Broken(Here):
        """A target that loses its mount when its caches are dropped."""

        def drop_caches(self) -> None:
            """Fails."""
            raise WorkloadFailed("no mount")

    (tmp_path / "broken").mkdir()
    broken = Broken(tmp_path / "broken")
    workloads = tuple(BY_NAME[name] for name in ("stat_cold", "stat_warm"))
    found = measure([broken], Plan(TINY, plan.material, 2, workloads), ignore)
    assert found["stat_cold"][broken.name].errors == ["no mount", "no mount"]
    assert len(found["stat_warm"][broken.name].rates) == 2


def test_a_step_that_takes_too_long_is_given_up(tmp_path: Path, plan: Plan) -> None:
    workloads = (BY_NAME["git_clone_status"], BY_NAME["create"])
    here = target(tmp_path, "a")
    found = measure([here], Plan(TINY, plan.material, 2, workloads, limit=0.0), ignore)
    assert found["git_clone_status"]["a"].errors == ["took more than 0 s"]


def test_a_second_client_finds_the_same_names(tmp_path: Path, plan: Plan) -> None:
    again = prepare(tmp_path / "cache", TINY, PREPARED)
    assert again == plan.material
    assert again.files == TINY.tree
