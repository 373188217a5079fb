"""The service dies by SIGKILL at any moment of a suspension, a resumption, a snapshot or a copy.

A process of its own drives the backend and is killed; what it started (runc, CRIU) goes on, as it
would on a host. Then another backend is set up on the same directory and does what the service
does: whatever it finds is made a running box with its memory, or a sleeping one that can be woken.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import trees
from boxd.backends.runc.backend import RuncBackend
from tests.harness.boxes.backend import STAND_IN
from tests.harness.boxes.suspending import Guest, judging
from tests.harness.nursery import nursery

if TYPE_CHECKING:
    from boxd.backends.checkpoint import criu
    from boxd.backends.interface import BackendBox
    from tests.harness.boxes.suspending import Sleepy
    from tests.plugins.figures import Figures

pytestmark = pytest.mark.timeout(580)

KILLS = 40
SNAPSHOT, CHILD = "5" * 32, "c" * 32
LONGEST = 1.5
"""Seconds after which a suspension or a resumption is over on a busy machine."""
PROGRAM = "tests.harness.boxes.suspending_main"


async def cut(sleepy: Sleepy, verdict: criu.Verdict, box: str, act: str, after: float) -> None:
    """Has a process do it and kills it after some seconds, unless it is done before."""
    assert verdict.program is not None
    # Two services at once would take each other's changes of the network for a stranger's.
    await sleepy.host.backend.close()
    reader, writer = os.pipe()
    words = (str(reader), str(sleepy.host.config.state_dir), box, act, str(verdict.program.path))
    more = (json.dumps(verdict.program.version), verdict.tools, str(sleepy.host.rootfs))
    process = nursery(PROGRAM).start(
        [*words, *more, SNAPSHOT, CHILD], log=2, out=subprocess.PIPE, pass_fds=(reader,)
    )
    os.close(reader)
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == b"ready\n"
        os.write(writer, b"!")
        os.close(writer)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
        process.kill()
        process.wait()


async def put_right(sleepy: Sleepy, verdict: criu.Verdict, guest: Guest) -> str:
    """What the service does with what it finds; returns what that was."""
    backend = RuncBackend(sleepy.host.config, init=STAND_IN, judge=judging(verdict))
    await backend.setup()
    sleepy.host.backend = backend
    (found,) = (one for one in await backend.list() if one.box_id == guest.box)
    if found.running and found.memory:
        assert found.frozen
        await backend.stop(guest.box)
        await backend.resume(guest.box, None)
    elif found.running:
        await backend.thaw(guest.box)
    else:
        assert found.memory, "the box is lost"
        await backend.resume(guest.box, None)
    return _told(found)


def _told(found: BackendBox) -> str:
    words = {"running": found.running, "frozen": found.frozen, "memory": found.memory}
    return " ".join(word for word, holds in words.items() if holds)


@pytest.mark.figure("CR-9")
@pytest.mark.parametrize("act", ["suspend", "resume"])
async def test_a_killed_service_loses_no_box(
    sleepy: Sleepy, verdict: criu.Verdict, figures: Figures, act: str
) -> None:
    guest = await sleepy.guest("memory=20")
    nonce, tick = guest.state()["nonce"], 0
    seen = set()
    for number in figures(ci=KILLS, long=400):
        chance = random.Random(f"{act} {number}")
        if act == "resume":
            tick = (await sleepy.suspend(guest))["tick"]
        # The first at once, and early moments are likelier: later ones are a busy machine's.
        moment = LONGEST * (number % KILLS) / KILLS * chance.random()
        await cut(sleepy, verdict, guest.box, act, moment)
        seen.add(await put_right(sleepy, verdict, guest))
        state = await guest.goes_on(tick)
        assert state["nonce"] == nonce
        tick = state["tick"]
        assert await only_one(sleepy, guest)
    assert len(seen) > 1, f"the moments of the kills were all alike: {seen}"


@pytest.mark.figure("CR-9")
async def test_a_killed_snapshot_costs_the_box_nothing(
    sleepy: Sleepy, verdict: criu.Verdict, figures: Figures
) -> None:
    """The snapshot is whole or is not there; it goes, and so does what was begun of it."""
    guest = await sleepy.guest("memory=20")
    nonce, tick = guest.state()["nonce"], 0
    chance = random.Random("snapshot")
    for _ in figures(ci=8, long=200):
        await cut(sleepy, verdict, guest.box, "snapshot", LONGEST * chance.random())
        await put_right(sleepy, verdict, guest)
        state = await guest.goes_on(tick)
        assert state["nonce"] == nonce
        tick = state["tick"]
        assert await only_one(sleepy, guest)
        if SNAPSHOT in await sleepy.host.backend.snapshots():
            child = await copy_of(sleepy)
            assert (await child.goes_on())["nonce"] == nonce
            await sleepy.host.backend.destroy(CHILD)
        await sleepy.host.backend.drop_snapshot(SNAPSHOT)
        assert await sleepy.host.backend.snapshots() == ()


@pytest.mark.figure("CR-9")
async def test_a_killed_copy_leaves_nothing(
    sleepy: Sleepy, verdict: criu.Verdict, figures: Figures
) -> None:
    """The service destroys a box that was being made; another copy of the snapshot lives."""
    guest = await sleepy.guest("memory=20")
    nonce, backend = guest.state()["nonce"], sleepy.host.backend
    await backend.freeze(guest.box)
    await backend.snapshot(guest.box, SNAPSHOT)
    await backend.thaw(guest.box)
    chance = random.Random("copy")
    for _ in figures(ci=8, long=200):
        before = sleepy.host.leftovers()
        await cut(sleepy, verdict, guest.box, "clone", LONGEST / 2 * chance.random())
        await put_right(sleepy, verdict, guest)
        await sleepy.host.backend.destroy(CHILD)
        trees.remove_tree(sleepy.host.names.paths(CHILD).directory)
        assert sleepy.host.leftovers() == before
        assert await only_one(sleepy, guest)
    child = await copy_of(sleepy)
    assert (await child.goes_on())["nonce"] == nonce
    assert (await guest.goes_on())["nonce"] == nonce


async def copy_of(sleepy: Sleepy) -> Guest:
    """A box that is made of the snapshot, running."""
    backend = sleepy.host.backend
    await backend.clone(sleepy.host.plan(box_id=CHILD, hostname="child"), SNAPSHOT)
    await backend.resume(CHILD, None)
    return Guest(sleepy.host, CHILD)


async def only_one(sleepy: Sleepy, guest: Guest) -> bool:
    """One such process is there, and it is the one of the box."""
    result = await sleepy.host.run(guest.box, "pgrep", "-c", "-f", "guest.py")
    on_host = [
        process
        for process in Path("/proc").glob("[0-9]*")
        if b"/root/guest.py" in _command(process)
    ]
    return result.out.strip() == "1" and len(on_host) == 1


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
