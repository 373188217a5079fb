"""CR-9: the service dies by SIGKILL at a step of what it does with a box, and starts again.

The whole service as a process before real boxes. After each kill the box is what the tables of
`boxd.boxes.lifecycle.suspend` and its neighbours promise, with its memory where that is promised,
can be used, is there once, and nothing is left of what was broken off. What a kill in the middle of
CRIU's own work leaves is tried in `tests/integration/boxd/suspension/test_suspend_kill.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.service.counter import COUNTER, counter, ticks_on
from tests.harness.service.footprint import Footprint
from tests.harness.service.mortal_daemon import open_mortal
from tests.harness.service.user import User

if TYPE_CHECKING:
    from pathlib import Path

    from boxd.backends.checkpoint import criu
    from tests.harness.service.mortal_daemon import Mortal
    from tests.plugins.figures import Figures

RUNNING, ASLEEP = ("running", False), ("suspended", True)


@dataclass(frozen=True)
class Act:
    """Something that is asked of the service, and the steps at which it dies.

    `steps` maps each to what the box `dev` is after the next start.
    """

    user: str
    command: str
    steps: dict[str, tuple[str, bool]]
    asleep: bool = False
    """The box is suspended before."""
    more: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Steps that are tried in the long run alone."""


ACTS = {
    "suspend": Act(
        "cli",
        "suspend dev",
        {
            "tunnel.quiesce done": RUNNING,
            "backend.freeze done": RUNNING,
            "backend.save_memory done": ASLEEP,
            "backend.stop done": ASLEEP,
        },
        more={
            "store.change_state done": RUNNING,
            "tunnel.quiesce": RUNNING,
            "backend.freeze": RUNNING,
            "backend.save_memory": RUNNING,
            "backend.stop": ASLEEP,
            "drive.forget done": ASLEEP,
        },
    ),
    "resume": Act(
        "cli",
        "resume dev",
        {
            "tunnel.open done": ASLEEP,
            "backend.resume done": RUNNING,
            "tunnel.get done": RUNNING,
        },
        asleep=True,
        more={
            "store.change_state done": ASLEEP,
            "drive.prepare done": ASLEEP,
            "backend.resume": ASLEEP,
            "tunnel.get": RUNNING,
        },
    ),
    "fork": Act(
        "cli",
        "snapshot fork dev kid",
        {
            "backend.snapshot done": RUNNING,
            "store.add_box done": RUNNING,
            "backend.clone done": RUNNING,
            "backend.resume done": RUNNING,
        },
        more={
            "tunnel.quiesce done": RUNNING,
            "backend.freeze done": RUNNING,
            "backend.thaw done": RUNNING,
            "tunnel.get done": RUNNING,
            "backend.drop_snapshot": RUNNING,
        },
    ),
    "fork asleep": Act(
        "cli",
        "snapshot fork dev kid",
        {"backend.clone done": ASLEEP},
        asleep=True,
        more={"backend.snapshot done": ASLEEP, "backend.resume done": ASLEEP},
    ),
    "snapshot": Act(
        "cli",
        "snapshot create dev good",
        {"backend.freeze done": RUNNING, "backend.snapshot done": RUNNING},
        more={
            "store.add_snapshot done": RUNNING,
            "tunnel.quiesce done": RUNNING,
            "backend.thaw done": RUNNING,
        },
    ),
    "restore": Act(
        "cli",
        "snapshot restore dev base",
        {
            "backend.stop done": ASLEEP,
            "backend.snapshot done": ASLEEP,
            "backend.restore_snapshot": ASLEEP,
            "backend.restore_snapshot done": ASLEEP,
        },
        more={"backend.save_memory done": ASLEEP, "store.finish_snapshot done": ASLEEP},
    ),
    "create": Act(
        "kid",
        "true",
        {
            "store.add_box done": RUNNING,
            "backend.create done": RUNNING,
            "backend.start done": RUNNING,
            "drive.attach done": RUNNING,
        },
        more={"tunnel.open done": RUNNING, "tunnel.get done": RUNNING},
    ),
}
"""What the box `dev` is after each kill. Those of `more` are tried in the long run alone."""


@dataclass(frozen=True)
class Kept:
    """What everything is before something is asked of the service."""

    who: str
    ticks: int
    host: Footprint
    snapshots: list[str]

    @classmethod
    def of(cls, mortal: Mortal, user: User) -> Kept:
        """Now; the box runs then."""
        who, ticks = counter(user, "dev")
        until(lambda: user.boxes()["dev"]["attached"] == 0)
        return cls(who, ticks, footprint(mortal), snapshots(user))


def footprint(mortal: Mortal) -> Footprint:
    """Processes without numbers of pids and descriptors, which are started anew meanwhile; memories
    of snapshots without their ids, as a restore puts one in the place of another."""
    assert mortal.daemon.process is not None
    found = Footprint.of(mortal.daemon.state, mortal.daemon.process.pid)
    memories = {name for name in found.directories if name.startswith("memories/")}
    numbered = {f"memories/{number}" for number in range(len(memories))}
    return replace(
        found,
        directories=found.directories - memories | numbered,
        processes=frozenset(re.sub(r"^\d+ |(?<=-fd )\d+", "", x) for x in found.processes),
    )


def snapshots(user: User) -> list[str]:
    """Names of those of the box, but for what a restore keeps."""
    found = json.loads(user.ssh("cli", "snapshot ls dev --json"))
    return sorted(one["snapshot"] for one in found if one["snapshot"] != "pre-restore")


def counters(mortal: Mortal, user: User) -> int:
    """How many processes count, in all boxes together."""
    lines = [line for box in user.boxes().values() for line in mortal.pids(str(box["id"])).values()]
    return lines.count("sh /root/count.sh")


@pytest.fixture(scope="module")
def user(mortal: Mortal, tmp_path_factory: pytest.TempPathFactory) -> User:
    """Somebody whose box `dev` counts, and has the snapshots `base` and `pre-restore`."""
    user = User(mortal.daemon, tmp_path_factory.mktemp("user"))
    user.ssh("dev", COUNTER)
    user.ssh("cli", "snapshot create dev base")
    user.ssh("cli", "snapshot restore dev base")
    return user


@pytest.mark.figure("CR-9")
@pytest.mark.promise("L2")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ACTS)
def test_a_killed_service_loses_and_doubles_nothing(
    mortal: Mortal, user: User, figures: Figures, name: str
) -> None:
    act = ACTS[name]
    steps = {**act.steps, **act.more} if figures.long else act.steps
    for number in figures(ci=len(steps), long=100 * len(steps)):
        step = list(steps)[number % len(steps)]
        before = Kept.of(mortal, user)
        if act.asleep:
            user.ssh("cli", "suspend dev")
        mortal.die_at(step, user.command(act.user, act.command))
        mortal.daemon.start()
        box = user.boxes()["dev"]
        assert (box["state"], box["memory"]) == steps[step], (step, box["detail"])
        who, ticks = counter(user, "dev")
        assert who == before.who, step
        assert ticks >= before.ticks or act is ACTS["restore"], step
        until(partial(ticks_on, user, ticks))
        until(lambda: user.boxes()["dev"]["attached"] == 0)
        # What it starts ten times a second has its command line for a moment.
        until(lambda: counters(mortal, user) == 1)
        assert set(user.boxes()) == {"dev"}, step
        assert snapshots(user) == before.snapshots, step
        left = footprint(mortal).more_than(before.host)
        assert left == [], (step, left)


MAKING = ("backend.freeze done", "backend.snapshot done")
COPYING = ("store.add_box done", "backend.clone done", "backend.resume done")


@pytest.mark.figure("CR-9")
@pytest.mark.timeout(600)
def test_a_killed_service_leaves_no_half_copies(
    image_rootfs: Path, verdict: criu.Verdict, tmp_path: Path, figures: Figures
) -> None:
    """While it makes the template, behind the first box that boots, and while it copies it."""
    assert verdict.suspends
    for number in figures(ci=1, long=100):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_mortal(image_rootfs) as mortal:
            user = User(mortal.daemon, folder)
            booted: set[str] = set()
            for step in MAKING:
                booted.add(f"booted{len(booted)}")
                mortal.die_at(step, user.command(max(booted), "true"))
                mortal.daemon.start()
                whole(mortal, user, booted, templates=0)
            booted.add("last")
            user.ssh("last", "true")
            until(lambda: "created a template of image debian" in mortal.daemon.log.read_text(), 60)
            for step in COPYING:
                mortal.die_at(step, user.command("copy", "true"))
                mortal.daemon.start()
                whole(mortal, user, booted, templates=1)
            assert user.ssh("copy", "hostname") == "copy"
            assert "box copied from a template" in mortal.daemon.log.read_text()


def whole(mortal: Mortal, user: User, names: set[str], *, templates: int) -> None:
    """There are these boxes, and they run; nothing is left of others."""
    boxes = user.boxes()
    assert boxes.keys() == names
    ids = {str(box["id"]) for box in boxes.values()}
    assert {box["state"] for box in boxes.values()} == {"running"}
    assert {path.name for path in mortal.daemon.boxes() if path.is_dir()} == ids
    assert len(list(mortal.names.origins_dir.glob("*"))) == templates
    assert len(list((mortal.daemon.state / "memories").glob("*"))) == templates
    for name in names:
        assert user.ssh(name, "hostname") == name
