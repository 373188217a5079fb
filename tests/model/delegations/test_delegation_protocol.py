"""Write delegations: every order of what two mounts, a plain client and later mounts do.

Small scripts are explored to the end: all their behaviours are run, but for orders of events that
touch nothing in common (`schedules`). So are the others in the long run (`--long`); in CI these
make the first MOST runs and some by chance. What is checked stands in `world`. A script
that found something in the code says so. Generated programs are run in orders by chance.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.doubles import meta_store, meta_volume
from tests.model.delegations import mount as model_mount
from tests.model.delegations.scripts import SCRIPTS, SMALL, generated
from tests.model.delegations.world import DelegationWorld
from tests.model.lease_mount import CLOCK
from tests.model.schedules import Violation, explore, wander
from tests.model.schedules import replay as replayed
from wrkfs.meta.delegations import flusher, grants, local_changes, replay, room, store
from wrkfs.meta.delegations.flusher import Flusher
from wrkfs.meta.delegations.grants import Grants
from wrkfs.meta.delegations.ordered import OrderedStore
from wrkfs.meta.leases import lease_table, lifecycle
from wrkfs.meta.leases.cached_directory import Changes
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.model.delegations.session import DelegationSession
    from tests.model.schedules import Key
    from tests.plugins.figures import Figures
    from wrkfs.types import Moved, RenameFlags

LIMIT = 5000
"""Runs of one small script."""
MOST = 40
"""Runs of one script in CI, each followed by WALKS by chance; the long run makes them all."""
WALKS = 40
ALL = 10_000_000


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes by itself, and the journals are in memory."""
    for module in (lifecycle, meta_store, meta_volume, store, grants, local_changes, room):
        monkeypatch.setattr(module, "time", CLOCK)
    for other in (lease_table, lifecycle):
        monkeypatch.setattr(other, "boottime", CLOCK.monotonic)
    monkeypatch.setattr(store, "Journal", model_mount.MemoryJournal)
    monkeypatch.setattr(replay, "left_journals", model_mount.left_journals)
    monkeypatch.setattr(asyncio, "to_thread", model_mount.inline)
    # Holders that lose changes say so, in most runs of some scripts.
    for logger in (flusher.log, replay.log):
        monkeypatch.setattr(logger, "disabled", True)


@pytest.mark.promise("V1")
@pytest.mark.promise("D1")
@pytest.mark.parametrize("name", SMALL)
def test_small_scripts_are_explored_to_the_end(name: str) -> None:
    report = explore(lambda: DelegationWorld(**SMALL[name]), most=LIMIT)
    assert report.exhausted, report
    print(f"{name}: {report}")


@pytest.mark.promise("V1")
@pytest.mark.promise("D1")
@pytest.mark.figure("VI-10")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_order_is_right(name: str, figures: Figures) -> None:
    script = SCRIPTS[name]
    report = explore(lambda: DelegationWorld(**script), most=ALL if figures.long else MOST)
    assert report.exhausted or not figures.long
    print(f"{name}: {report}")
    chance = random.Random(0)
    for _ in range(0 if report.exhausted else WALKS):
        wander(lambda: DelegationWorld(**script), chance)


@pytest.mark.figure("VI-10")
def test_generated_programs(figures: Figures) -> None:
    for seed in figures(ci=500, long=1_000_000):
        chance = random.Random(seed)
        script = generated(chance)
        try:
            wander(partial(DelegationWorld, **script), chance)
        except BaseException as error:
            error.add_note(f"seed {seed}: {script}")
            raise


# -- faults that the model must find --

ALL_SCRIPTS = {**SCRIPTS, **SMALL}


def end_at_once(patch: pytest.MonkeyPatch) -> None:
    """A delegation is given back in a batch of its own, beside the one with the changes."""

    def release(self: Flusher, directories: Iterable[Ino]) -> None:
        session = cast("DelegationSession", self._inner)
        session.database.end_delegations(directories, session.number)

    patch.setattr(Flusher, "release", release)


def write_no_journal(patch: pytest.MonkeyPatch) -> None:
    """A change is answered before the journal has it."""
    patch.setattr(model_mount.MemoryJournal, "append", lambda _, __: None)


def sync_early(patch: pytest.MonkeyPatch) -> None:
    """fsync does not wait for the batch."""

    async def sync(self: OrderedStore) -> None:
        self._flusher.send_now()

    patch.setattr(OrderedStore, "sync", sync)


def decide_on(patch: pytest.MonkeyPatch) -> None:
    """A recall sends the changes, and the mount goes on deciding."""

    def recalled(self: Grants, directories: Sequence[Ino]) -> None:
        self._flusher.release(directories)
        self._flusher.send_now()

    patch.setattr(Grants, "recalled", recalled)


def ignore_recalls_of_requests(patch: pytest.MonkeyPatch) -> None:
    """A grant is used although it was recalled before its answer."""
    asking = property(lambda _: Forgetful(), lambda *_: None)
    patch.setattr(Grants, "_asking", asking, raising=False)


class Forgetful(dict[Ino, bool]):
    """No request has been recalled, it says."""

    def __contains__(self, key: object) -> bool:
        return False

    def __getitem__(self, key: Ino) -> bool:
        return False

    def __delitem__(self, key: Ino) -> None:
        return


def ask_while_releasing(patch: pytest.MonkeyPatch) -> None:
    """A delegation is asked for while a batch gives it back, and without a pause after a recall."""
    patch.setattr(Grants, "is_contended", lambda *_: False)
    patch.setattr(Flusher, "is_releasing", lambda *_: False)


def trust_mkdir(patch: pytest.MonkeyPatch) -> None:
    """A new directory is delegated although it was recalled before the answer."""
    patch.setattr(Grants, "_making", property(lambda _: [], lambda *_: None), raising=False)


def fence_beside_replay(patch: pytest.MonkeyPatch) -> None:
    """A mount fences a dead session whose journal another mount replays."""
    left = model_mount.left_journals
    patch.setattr(replay, "left_journals", lambda *place: (left(*place)[0], set()))


def read_behind_changes(patch: pytest.MonkeyPatch) -> None:
    """A read of the database does not send the changes that concern it."""

    async def settle(_: OrderedStore, *__: Ino) -> None:
        return

    patch.setattr(OrderedStore, "_settle", settle)


def change_behind_changes(patch: pytest.MonkeyPatch) -> None:
    """A change in the database does not send the earlier ones first."""

    async def rename(
        self: OrderedStore, parent: Ino, name: bytes, goal: Ino, new: bytes, flags: RenameFlags
    ) -> Moved | None:
        return await self._inner.rename(parent, name, goal, new, flags)

    patch.setattr(OrderedStore, "rename", rename)


def decide_beside_removals(patch: pytest.MonkeyPatch) -> None:
    """A change is decided while a call removes an inode by a name that the cache does not know."""
    patch.setattr(Changes, "may_touch", Changes.touches)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    end_at_once: "look",
    write_no_journal: "kill",
    sync_early: "fsync",
    decide_on: "held-read",
    ask_while_releasing: "tree-look",
    trust_mkdir: "mkdir-look",
    fence_beside_replay: "kill-two",
    ignore_recalls_of_requests: "grant",
    read_behind_changes: "freeze",
    change_behind_changes: "cycle",
    decide_beside_removals: "unnamed",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    is_found(ALL_SCRIPTS[FAULTS[fault]])


DATABASE_FAULTS = {
    "release_first": "look",
    "repeats": "repeat",
    "shared_grant": "grant-twice",
    "fenced_replay": "freeze-race",
    "blind_reads": "look",
    "blind_changes": "held-change",
    "lazy_grant": "crash-grant",
    "lazy_apply": "crash",
    "no_implied_grants": "tree-look",
    "settled_files": "grant-stat",
}


@pytest.mark.parametrize("fault", DATABASE_FAULTS)
def test_faults_of_the_database_are_found(fault: str) -> None:
    is_found(ALL_SCRIPTS[DATABASE_FAULTS[fault]], frozenset({fault}))


STALLED: tuple[Key, ...] = (
    ("start", 2, 0),
    ("mkdir", 3, 1, "foreign", 0),
    ("start", 0, 0),
    ("delegate", 1, 5, "do", 0),
    ("delegate", 1, 5, "look", 0),
    ("delegate", 1, 5, "commit", 0),
    ("delegate", 1, 5, "deliver", 0),
    ("start", 3, 0),
    ("start", 1, 0),
    ("create", 2, 1, "foreign", 0),
    ("create", 2, 1, "lock"),
    ("create", 2, 1, "look"),
    ("create", 2, 1, "commit"),
    ("mkdir", 3, 1, "lock"),
)
"""A change looks for delegations, and stands still until the holder has expired."""


def test_a_stalled_change_finds_the_holder() -> None:
    script = SCRIPTS["freeze-elsewhere"]
    replayed(lambda: DelegationWorld(**script), STALLED)
    faults = frozenset({"orphaned_leases"})
    with pytest.raises(Violation):
        replayed(lambda: DelegationWorld(**script, faults=faults), STALLED)


def is_found(script: dict[str, Any], faults: frozenset[str] = frozenset()) -> None:
    chance = random.Random(1)

    def runs() -> None:
        for _ in range(4000):
            wander(lambda: DelegationWorld(**script, faults=faults), chance)

    with pytest.raises(Violation):
        runs()
