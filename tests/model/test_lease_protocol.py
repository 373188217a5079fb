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

from tests.model.lease_session import LeaseSession
from tests.model.lease_world import CLOCK, HTTP, D, E, F, LeaseWorld, Op
from tests.model.schedules import Violation, explore, wander
from wrkfs.meta import keeping, leased, light, memory, memory_volume
from wrkfs.meta.kept import Changes
from wrkfs.meta.leased import LeasedMeta
from wrkfs.meta.light import LightOpens
from wrkfs.types import ROOT_INO, Ino

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from tests.plugins.figures import Figures

MOST = 120
"""Runs of one script in CI, each followed by WALKS by chance; the long run makes them all."""
WALKS = 30
ALL = 1_000_000

WARM = [(1, ("list", D)), (1, ("stat", D)), (2, ("list", D)), (2, ("stat", F))]
OPENED = [(1, ("list", D)), (1, ("stat", F)), (1, ("open", F)), (1, ("close", F))]
OPEN = [*OPENED, (1, ("open", F))]
LOOK: Op = ("look", D, b"f")

SCRIPTS: dict[str, dict[str, Any]] = {
    # Questions that take leases, beside a change.
    "look-unlink": {"programs": [(1, [LOOK]), (2, [("unlink", D, b"f"), LOOK])]},
    "look-twice-unlink": {"programs": [(1, [LOOK, LOOK]), (HTTP, [("unlink", D, b"f")])]},
    "absent-create": {
        "programs": [(1, [("look", D, b"g"), ("look", D, b"g")]), (HTTP, [("create", D, b"g")])]
    },
    "list-create": {"programs": [(1, [("list", D), ("list", D)]), (HTTP, [("create", D, b"g")])]},
    "stat-chmod": {
        "programs": [(1, [("stat", D), LOOK, ("stat", F)]), (HTTP, [("chmod", F, 0o600)])]
    },
    "stat-write": {"programs": [(1, [LOOK, ("stat", F)]), (HTTP, [("write", F)])]},
    # Warm clients.
    "warm-unlink": {
        "programs": [(1, [LOOK, ("stat", F)]), (2, [("unlink", D, b"f"), LOOK])],
        "warm": WARM,
    },
    "warm-create": {
        "programs": [(1, [("look", D, b"g"), ("list", D)]), (2, [("create", D, b"g")])],
        "warm": WARM,
    },
    "both-create": {
        "programs": [(1, [("create", D, b"g")]), (2, [("create", D, b"g"), ("list", D)])],
        "warm": WARM,
    },
    "both-chmod": {
        "programs": [(1, [("chmod", F, 0o600), ("stat", F)]), (2, [("chmod", F, 0o640)])],
        "warm": WARM,
    },
    "own-change-beside-questions": {
        "programs": [
            (1, [("unlink", D, b"f"), ("stat", D)]),
            (1, [LOOK, LOOK]),
            (HTTP, [("chmod", D, 0o700)]),
        ],
        "warm": WARM[:2],
    },
    "own-unlink-beside-look": {
        "programs": [(1, [("unlink", D, b"f")]), (1, [LOOK, LOOK])],
        "warm": [(1, ("stat", D))],
    },
    "two-own-changes": {
        "programs": [
            (1, [("chmod", F, 0o600), ("stat", F)]),
            (1, [("chmod", F, 0o640), ("stat", F)]),
        ],
        "warm": [*WARM, (1, ("stat", F))],
    },
    "create-and-remove": {
        "programs": [(1, [("create", D, b"g")]), (1, [("unlink", D, b"g"), ("look", D, b"g")])],
        "warm": WARM,
    },
    "mkdir": {
        "programs": [
            (1, [("mkdir", E, b"n"), ("look", Ino(5), b"x")]),
            (HTTP, [("look", E, b"n"), ("create", Ino(5), b"x")]),
        ],
    },
    "rmdir": {
        "programs": [(1, [("look", E, b"x"), ("stat", E)]), (2, [("rmdir", ROOT_INO, b"e")])],
        "warm": [(1, ("list", E)), (1, ("stat", E)), (2, ("list", ROOT_INO))],
    },
    "rename-away": {
        "programs": [
            (1, [LOOK, ("look", E, b"h")]),
            (2, [("rename", D, b"f", E, b"h"), ("look", E, b"h")]),
        ],
        "warm": [*WARM, (1, ("look", E, b"h"))],
    },
    "rename-then-chmod": {
        "programs": [
            (1, [("rename", D, b"f", E, b"h"), ("stat", F), ("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": [(1, ("list", D)), (1, ("stat", F))],
    },
    "link": {
        "programs": [
            (1, [("stat", F), ("stat", F)]),
            (2, [("link", F, E, b"h"), ("chmod", F, 0o600)]),
        ],
        "warm": WARM,
    },
    "own-link": {
        "programs": [(1, [("link", F, E, b"h"), ("stat", F)]), (HTTP, [("chmod", F, 0o600)])],
        "warm": OPENED,
    },
    # Files open without telling.
    "open-unlink": {
        "programs": [(1, [("open", F), ("close", F)]), (2, [("unlink", D, b"f")])],
        "warm": OPENED,
    },
    "open-own-unlink": {
        "programs": [(1, [("open", F), ("close", F)]), (1, [("unlink", D, b"f")])],
        "warm": OPENED,
    },
    "open-replaced": {
        "programs": [(1, [("open", F), ("close", F)]), (HTTP, [("rename", E, b"x", D, b"f")])],
        "warm": [*OPENED, (HTTP, ("create", E, b"x"))],
    },
    # Found: what an own rename, or link, takes from under a lease was relied on until its answer.
    "rename-beside-chmod": {
        "programs": [
            (1, [("rename", D, b"f", E, b"h")]),
            (1, [("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": [(1, ("list", D)), (1, ("stat", F))],
    },
    "link-beside-chmod": {
        "programs": [
            (1, [("link", F, E, b"h")]),
            (1, [("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": OPENED,
    },
    "unknown-rename-beside-chmod": {
        "programs": [
            (1, [("rename", D, b"f", E, b"h")]),
            (1, [("stat", F)]),
            (HTTP, [("chmod", F, 0o600)]),
        ],
        "warm": [(1, ("stat", D)), (1, ("stat", F))],
    },
    "open-own-link-unlink": {
        "programs": [
            (1, [("link", F, E, b"h"), ("unlink", D, b"f")]),
            (HTTP, [("unlink", E, b"h")]),
        ],
        "warm": OPEN,
    },
    # Found: attributes that own changes had made unknown took the open file with them.
    "open-unknown-unlink": {
        "programs": [
            (1, [("chmod", F, 0o600)]),
            (1, [("chmod", F, 0o640)]),
            (HTTP, [("unlink", D, b"f")]),
        ],
        "warm": OPEN,
    },
    # Found: who was recalled once more gave back before the first recall was done.
    "recalled-again": {
        "programs": [(1, [("close", F)]), (HTTP, [("unlink", D, b"f")])],
        "warm": OPEN,
        "impatience": 1,
    },
    # Found: a lease taken anew while the last one was given back, and went with it.
    "taken-while-given-back": {
        "programs": [(1, [LOOK]), (HTTP, [("chmod", D, 0o700)]), (0, [("pause",)])],
        "warm": WARM[:2],
    },
    "no-room": {
        "programs": [(1, [("look", E, b"x"), LOOK]), (HTTP, [("unlink", D, b"f")])],
        "warm": WARM[:1],
        "room": 3,
    },
    # Found: a lease that was recalled before it was answered counted, when that took a second.
    "recalled-before-answered": {
        "programs": [(1, [LOOK]), (1, [LOOK]), (HTTP, [("chmod", D, 0o700)]), (0, [("pause",)])],
    },
    # Sessions that expire.
    "frozen": {
        "programs": [
            (1, [LOOK, LOOK]),
            (HTTP, [("unlink", D, b"f")]),
            (0, [("freeze", 1)]),
            (1, [("beat",)]),
        ],
        "warm": WARM[:2],
        "voids": True,
    },
    "frozen-cold": {
        "programs": [(1, [LOOK]), (HTTP, [("unlink", D, b"f")]), (0, [("freeze", 1)])],
        "voids": True,
    },
}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes by itself."""
    for module in (keeping, light, memory, memory_volume):
        monkeypatch.setattr(module, "time", CLOCK)
    for other in (keeping, leased):
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


def leave_early(patch: pytest.MonkeyPatch) -> None:
    """The lease is given back before the kernel has forgotten."""

    async def surrender(self: LeasedMeta, directories: list[Ino], told: set[Ino]) -> None:
        await self._inner.give_back(directories)
        await self._light.sustain(self._light.all)
        await self.on_drop(directories, told)
        for directory in directories:
            del self._leaving[directory]

    patch.setattr(LeasedMeta, "_surrender", surrender)


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
    def deaf(_: LeasedMeta) -> Iterator[set[Ino]]:
        yield set()

    patch.setattr(LeasedMeta, "_listening", deaf)


def sustain_nothing(patch: pytest.MonkeyPatch) -> None:
    """The database is not told of open files when their lease is recalled."""

    async def nothing(_: LightOpens, __: Iterable[Ino]) -> None:
        return

    patch.setattr(LightOpens, "sustain", nothing)


def take_while_leaving(patch: pytest.MonkeyPatch) -> None:
    """A lease is taken while the last one is given back."""
    take = LeasedMeta._take

    async def careless(self: LeasedMeta, directory: Ino) -> None:
        leaving, self._leaving = self._leaving, {}
        try:
            work = take(self, directory)
            pending = asyncio.ensure_future(work)
            await asyncio.sleep(0)
        finally:
            self._leaving = leaving
        await pending

    patch.setattr(LeasedMeta, "_take", careless)


class Deaf(dict[Ino, "asyncio.Task[None]"]):
    """Nothing is under way, it says."""

    def __contains__(self, key: object) -> bool:
        return False

    def __delitem__(self, key: Ino) -> None:
        self.pop(key, None)


def recall_twice(patch: pytest.MonkeyPatch) -> None:
    """Who is recalled again does not wait for the first recall's end."""
    recalled = LeasedMeta._recalled

    def hasty(self: LeasedMeta, directories: Sequence[Ino]) -> None:
        self._leaving = Deaf(self._leaving)
        recalled(self, directories)

    patch.setattr(LeasedMeta, "_recalled", hasty)


def trust_for_ever(patch: pytest.MonkeyPatch) -> None:
    """What is kept is served though the session may have expired."""
    patch.setattr(keeping, "boottime", lambda: 0.0)


FAULTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    leave_early: "warm-unlink",
    believe_everything: "look-twice-unlink",
    forget_own_changes: "own-unlink-beside-look",
    hear_nothing: "recalled-before-answered",
    sustain_nothing: "open-unlink",
    take_while_leaving: "taken-while-given-back",
    recall_twice: "recalled-again",
    trust_for_ever: "frozen",
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


OPS: tuple[Op, ...] = (
    LOOK, LOOK, ("stat", F), ("stat", D), ("list", D), ("look", D, b"g"), ("look", E, b"g"),
    ("create", D, b"g"), ("unlink", D, b"f"), ("unlink", D, b"g"), ("chmod", F, 0o600),
    ("chmod", D, 0o700), ("write", F), ("rename", D, b"f", E, b"g"), ("rename", D, b"f", D, b"g"),
    ("link", F, E, b"g"), ("mkdir", E, b"n"), ("rmdir", ROOT_INO, b"e"), ("open", F), ("close", F),
)  # fmt: skip


def generated(chance: random.Random) -> dict[str, Any]:
    """Programs of a few calls on all clients, after a few others."""
    clients = [1, 2, HTTP, *chance.choices((1, 2, HTTP), k=chance.randrange(2))]
    programs = [(one, chance.choices(OPS, k=chance.randrange(1, 4))) for one in clients]
    if chance.random() < 0.3:
        programs.append((0, [("pause",)]))
    warm = [(chance.choice((1, 2)), chance.choice(OPS)) for _ in range(chance.randrange(5))]
    room = chance.choice((0, 0, 0, 3))
    return {"programs": programs, "warm": warm, "impatience": chance.randrange(2), "room": room}


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
