"""A box is suspended while one of its processes waits for a child that has yet to begin (vfork)."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host import cgroups
from tests.harness.wait import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.suspending import Guest, Sleepy

pytestmark = pytest.mark.timeout(300)
SPAWN = b"""
import os
os.mkfifo("/root/gate")
action = (os.POSIX_SPAWN_OPEN, 0, "/root/gate", os.O_RDONLY, 0)
os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ, file_actions=[action])
open("/root/spawned", "w").close()
os.wait()
"""
"""Its child opens the gate, and waits for who writes to it, before it becomes another program."""


async def spawning(sleepy: Sleepy) -> tuple[Guest, Path]:
    """A box in which one process waits for another; and the box's home on the host."""
    guest = await sleepy.guest()
    await sleepy.host.run(guest.box, "sh", "-c", "cat > /root/spawn.py", stdin=SPAWN)
    start = "setsid python3 /root/spawn.py </dev/null >/dev/null 2>&1 &"
    assert (await sleepy.host.run(guest.box, "sh", "-c", start)).status == 0
    layout, cgroup = cgroups.detect(), sleepy.host.cgroup(guest.box)
    await until(lambda: any(map(cgroups.is_spawning, cgroups.pids_of(layout, cgroup))))
    return guest, sleepy.host.names.paths(guest.box).root / "root"


async def test_a_box_stands_still_when_what_it_was_starting_has_begun(sleepy: Sleepy) -> None:
    guest, home = await spawning(sleepy)
    freezing = asyncio.create_task(sleepy.host.backend.freeze(guest.box))
    done, _ = await asyncio.wait({freezing}, timeout=0.5)
    assert not done
    gate = os.open(home / "gate", os.O_RDWR)
    try:
        await freezing
    finally:
        os.close(gate)
    asleep = guest.state()
    await sleepy.host.backend.save_memory(guest.box)
    await sleepy.host.backend.stop(guest.box)
    await sleepy.resume(guest)
    assert (await guest.goes_on(asleep["tick"]))["nonce"] == asleep["nonce"]
    await until((home / "spawned").exists)


async def test_a_box_that_never_comes_to_start_it_stands_still_all_the_same(
    sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "SPAWN_TIMEOUT", 0.3)
    guest, home = await spawning(sleepy)
    await sleepy.host.backend.freeze(guest.box)
    assert cgroups.is_frozen(cgroups.detect(), sleepy.host.cgroup(guest.box))
    await sleepy.host.backend.thaw(guest.box)
    await guest.goes_on()
    assert not (home / "spawned").exists()
