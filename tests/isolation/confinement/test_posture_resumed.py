"""A box that runs from a memory is bound as one that was started: what holds it, and what it tries.

After a suspension, after a snapshot was restored, as a fork, and as a copy that was given other
limits than what it was made of.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boxd.backends.host import cgroups
from tests.harness.boxes.escapes import tried
from tests.harness.boxes.lives import WAYS
from tests.harness.boxes.posture import asleep, caps, posture, reviewed
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.harness.boxes.backend import BoxHost
    from tests.harness.boxes.lives import Way
    from tests.harness.boxes.suspending import Sleepy

LIMITS = {"cpus": 0.5, "mem_mb": 192, "pids": 77}


def sleepers(pids: Iterable[int]) -> list[int]:
    """Those that run the command which each box of these tests begins with."""
    return [pid for pid in pids if asleep(pid)]


async def bounds(host: BoxHost, box: str) -> dict[str, Any]:
    """What holds a box: posture, with a command that ran before and one from now, and limits."""
    layout, cgroup, init = cgroups.detect(), host.cgroup(box), host.pid(box)
    await until(lambda: sleepers(cgroups.pids_of(layout, cgroup)))
    before = set(cgroups.pids_of(layout, cgroup))
    (kept,) = sleepers(before)
    command = "exec sleep 3600 </dev/null >/dev/null 2>&1 &"
    assert (await host.run(box, "bash", "-c", command)).status == 0
    (new,) = set(cgroups.pids_of(layout, cgroup)) - before
    await until(lambda: asleep(new))
    assert Path(f"/proc/{new}/cgroup").read_text() == Path(f"/proc/{init}/cgroup").read_text()
    files = [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in (init, kept, new)]
    return {
        "posture": posture(init, new),
        "kept": posture(init, kept)["command"],
        "caps": caps(host, box),
        "files": files,
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_it_is_bound_as_a_started_one(sleepy: Sleepy, way: Way) -> None:
    started = await bounds(sleepy.host, await sleepy.host.box(**LIMITS))
    guest = await way(sleepy, **LIMITS)
    now = await bounds(sleepy.host, guest.box)
    for process in (now["posture"]["init"], now["kept"], now["posture"]["command"]):
        if "time" in process["own_namespaces"]:
            process["own_namespaces"].remove("time")  # what CRIU gives clocks with
    assert now == started
    assert now["posture"] == reviewed()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_no_escape_succeeds(sleepy: Sleepy, way: Way) -> None:
    guest = await way(sleepy)
    assert await tried(sleepy.host, guest.box) == {}
