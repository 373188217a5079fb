"""Leases: every order of what two mounts, their kernels and an HTTP client do on a small tree.

In the long run (`--long`) each script is explored to the end: all its behaviours are run, but for
orders of events that touch nothing in common (`schedules`). In CI the small ones are, and of the
others the first MOST runs and some by chance. What is checked stands in `lease_world`. A script
that found something in the code says so. Generated programs, which are too many to exhaust, are run
in orders by chance, more of them in the long run.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.doubles import meta_store, meta_volume
from tests.model.lease_mount import CLOCK
from tests.model.lease_scripts import SCRIPTS, generated
from tests.model.lease_session import LeaseSession
from tests.model.lease_world import LeaseWorld
from tests.model.schedules import Violation, explore, replay, wander
from wrkfs.meta.leases import lease_table, lifecycle
from wrkfs.meta.leases.cached_directory import Changes
from wrkfs.meta.leases.lifecycle import LeaseLifecycle
from wrkfs.meta.leases.unrecorded_opens import UnrecordedOpens
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from tests.model.schedules import Key
    from tests.plugins.figures import Figures
    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest

MOST = 120
"""Runs of one script in CI, each followed by WALKS by chance; the long run makes them all."""
WALKS = 30
ALL = 1_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes by itself."""
    for module in (lifecycle, meta_store, meta_volume):
        monkeypatch.setattr(module, "time", CLOCK)
    for other in (lease_table, lifecycle):
        monkeypatch.setattr(other, "boottime", CLOCK.monotonic)


@pytest.mark.promise("V1")
@pytest.mark.promise("V5")
@pytest.mark.figure("VI-9")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_order_is_right(name: str, figures: Figures) -> None:
    script = SCRIPTS[name]
    report = explore(lambda: LeaseWorld(**script), most=ALL if figures.long else MOST)
    assert report.exhausted or not figures.long
    print(f"{name}: {report}")
    chance = random.Random(0)
    for _ in range(0 if report.exhausted else WALKS):
        wander(lambda: LeaseWorld(**script), chance)


LATE: tuple[Key, ...] = (
    ("start", 0, 0),
    ("take_lease", 1, 1, "do"),
    ("start", 2, 0),
    ("setattr", 3, 1, "lock"),
    ("setattr", 3, 1, "look"),
    ("setattr", 3, 1, "commit"),
    ("recall", 1, 0),
    ("drop", 1, 1),
    ("give_back", 1, 2, "do"),
    ("give_back", 1, 2, "deliver"),
    ("start", 3, 0),
    ("start", 1, 0),
    ("take_lease", 1, 1, "deliver"),
)
"""More than a second between a lease and its answer, in which it was recalled and given back."""


def test_a_late_answer_is_no_lease() -> None:
    replay(lambda: LeaseWorld(**SCRIPTS["recalled-before-answered"]), LATE)


def leave_early(patch: pytest.MonkeyPatch) -> None:
    """The lease is given back before the kernel has forgotten."""

    async def surrender(
        self: LeaseLifecycle, directories: list[Ino], drop: Awaitable[None]
    ) -> None:
        await self._inner.give_back(directories)
        await self.opens.sustain(self.opens.all)
        await drop
        for directory in directories:
            del self._leaving[directory]

    patch.setattr(LeaseLifecycle, "_surrender", surrender)


def believe_everything(patch: pytest.MonkeyPatch) -> None:
    """Answers are kept though they are not settled."""
    for kind in ("find", "stat", "entries"):
        ask = getattr(LeaseSession, kind)

        async def settled(
            self: LeaseSession,
            *args: object,
            ask: Callable[..., Awaitable[tuple[object, bool]]] = ask,
        ) -> tuple[object, bool]:
            return (await ask(self, *args))[0], True

        patch.setattr(LeaseSession, kind, settled)


def forget_own_changes(patch: pytest.MonkeyPatch) -> None:
    """What is read is kept, and served, though own changes are under way."""
    patch.setattr(Changes, "mark", property(lambda _: 0))
    patch.setattr(Changes, "touches", lambda _, __: False)
    patch.setattr(Changes, "touches_names", lambda _, __: False)


def hear_nothing(patch: pytest.MonkeyPatch) -> None:
    """A lease is adopted that was recalled before its answer."""

    @contextmanager
    def deaf(_: LeaseLifecycle) -> Iterator[set[Ino]]:
        yield set()

    patch.setattr(LeaseLifecycle, "listening", deaf)


def sustain_nothing(patch: pytest.MonkeyPatch) -> None:
    """The database is not told of open files when their lease is recalled."""

    async def nothing(_: UnrecordedOpens, __: Iterable[Ino]) -> None:
        return

    patch.setattr(UnrecordedOpens, "sustain", nothing)


def take_while_leaving(patch: pytest.MonkeyPatch) -> None:
    """A lease is taken while the last one is given back."""
    take = LeaseLifecycle.take

    async def careless(self: LeaseLifecycle, directory: Ino) -> None:
        leaving, self._leaving = self._leaving, {}
        try:
            work = take(self, directory)
            pending = asyncio.ensure_future(work)
            await asyncio.sleep(0)
        finally:
            self._leaving = leaving
        await pending

    patch.setattr(LeaseLifecycle, "take", careless)


def believe_trees(patch: pytest.MonkeyPatch) -> None:
    """Listings that were read ahead are cached although they are not settled."""
    read_tree = LeaseSession.read_tree

    async def settled(self: LeaseSession, request: TreeRequest) -> TreeAnswer:
        answer = await read_tree(self, request)
        for listing in answer.listings:
            listing.settled = True
            for entry in listing.entries:
                entry.settled = True
        return answer

    patch.setattr(LeaseSession, "read_tree", settled)


def adopt_everything(patch: pytest.MonkeyPatch) -> None:
    """A lease that was taken ahead is used although it was recalled before its answer."""

    def adopt(
        self: LeaseLifecycle, directories: Sequence[Ino], _moment: object, _recalled: object
    ) -> None:
        for directory in directories:
            if directory not in self._table.directories:
                self._table.adopt(directory)

    patch.setattr(LeaseLifecycle, "adopt_ahead", adopt)


class Deaf(dict[Ino, "asyncio.Task[None]"]):
    """Nothing is under way, it says."""

    def __contains__(self, key: object) -> bool:
        return False

    def __delitem__(self, key: Ino) -> None:
        self.pop(key, None)


def recall_twice(patch: pytest.MonkeyPatch) -> None:
    """Who is recalled again does not wait for the first recall's end."""
    recalled = LeaseLifecycle._recalled

    def hasty(self: LeaseLifecycle, directories: Sequence[Ino]) -> None:
        self._leaving = Deaf(self._leaving)
        recalled(self, directories)

    patch.setattr(LeaseLifecycle, "_recalled", hasty)


def trust_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What is kept is served though the session may have expired."""
    patch.setattr(lease_table, "boottime", lambda: 0.0)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    leave_early: "warm-unlink",
    believe_everything: "look-twice-unlink",
    forget_own_changes: "own-unlink-beside-look",
    hear_nothing: "recalled-before-answered",
    sustain_nothing: "open-unlink",
    take_while_leaving: "no-room",
    recall_twice: "recalled-again",
    trust_for_ever: "frozen",
    believe_trees: "list-create",
    adopt_everything: "walk-chmod-early",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found(
    fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    is_found(SCRIPTS[FAULTS[fault]])


@pytest.mark.parametrize("fault", ["look_first", "forgetful"])
def test_faults_of_the_others_are_found(fault: str) -> None:
    """A database that looks for leases before it locks; a kernel that does not forget."""
    script = SCRIPTS["warm-unlink" if fault == "forgetful" else "look-twice-unlink"]
    options = {**script, fault: True}
    is_found(options)


def is_found(script: dict[str, Any]) -> None:
    chance = random.Random(1)

    def runs() -> None:
        for _ in range(4000):
            wander(lambda: LeaseWorld(**script), chance)

    with pytest.raises(Violation):
        runs()


@pytest.mark.figure("VI-9")
def test_generated_programs(figures: Figures) -> None:
    for seed in figures(ci=800, long=1_000_000):
        chance = random.Random(seed)
        script = generated(chance)
        try:
            wander(partial(LeaseWorld, **script), chance)
        except BaseException as error:
            error.add_note(f"seed {seed}: {script}")
            raise
