"""Fixtures `verdict` and `sleepy`: boxes that are really suspended and resumed.

Tests fail on a machine without CRIU; `scripts/criu` reports the reason. The first test tries out
CRIU's abilities and stores the result in `/var/cache/boxd-tests`.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from boxd.backends.checkpoint import criu
from tests.harness.boxes import guest
from tests.harness.boxes.backend import TRIED, BoxHost, open_box_host
from tests.harness.loop import run
from tests.harness.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

GUEST = "/root/guest.py"


@dataclass
class Guest:
    """The program of `guest` in one box."""

    host: BoxHost
    box: str

    def state(self) -> dict[str, Any]:
        """Return its last state; empty before the first one."""
        place = self.host.names.paths(self.box).root / str(guest.STATE).lstrip("/")
        try:
            state: dict[str, Any] = json.loads(place.read_text())
        except FileNotFoundError:
            return {}
        return state

    def tick(self) -> int:
        """Return its counter; 0 before it runs."""
        return int(self.state().get("tick", 0))

    async def goes_on(self, after: int = 0) -> dict[str, Any]:
        """Wait until the counter exceeds a value, or its current value."""
        after = after or self.tick()
        await until(lambda: self.tick() > after)
        return self.state()


@dataclass
class Sleepy:
    """A host that can suspend boxes."""

    host: BoxHost

    async def guest(self, *words: str, box: str = "", **plan: object) -> Guest:
        """Start the program in a new or named box; return when the program counts."""
        box = box or await self.host.box(**plan)
        text = Path(guest.__file__).read_bytes()
        await self.host.run(box, "sh", "-c", f"cat > {GUEST}", stdin=text)
        command = f"setsid /usr/bin/python3 {GUEST} {' '.join(words)}"
        result = await self.host.run(box, "sh", "-c", f"{command} </dev/null >/root/said 2>&1 &")
        assert result.status == 0, result.err
        made = Guest(self.host, box)
        await made.goes_on()
        return made

    def memory(self, box: str) -> Path:
        """Return the path of a suspended box's memory."""
        state = self.host.config.state_dir
        (place,) = (*state.glob(f"boxes/{box}/memory"), *state.glob(f"disks/boxes/{box}/memory"))
        return place

    async def suspend(self, guest: Guest) -> dict[str, Any]:
        """Suspend the box with all steps; return the state in which it sleeps."""
        backend = self.host.backend
        await backend.freeze(guest.box)
        asleep = guest.state()
        await backend.save_memory(guest.box)
        await backend.stop(guest.box)
        return asleep

    async def resume(self, guest: Guest, drive: Path | None = None) -> None:
        """Resume the box."""
        await self.host.backend.resume(guest.box, drive)


@pytest.fixture(scope="session")
def verdict() -> criu.Verdict:
    """Return whether this machine can suspend boxes, after a trial with a real box."""
    TRIED.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (TRIED / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test workers share the directory
        found = run(criu.verdict(TRIED))
    if found.program is None or not found.program.suffices:
        pytest.fail(f"there is no CRIU 4.3 for the tests; run scripts/criu: {found.text}")
    assert found.suspends, found.text
    return found


def judging(verdict: criu.Verdict) -> Callable[[Path], Awaitable[criu.Verdict]]:
    """Return a judge that always gives this verdict."""

    async def judge(state_dir: Path) -> criu.Verdict:
        del state_dir
        return verdict

    return judge


@pytest_asyncio.fixture
async def sleepy(
    tmp_path: Path, image_rootfs: Path, verdict: criu.Verdict
) -> AsyncIterator[Sleepy]:
    """Yield a runc backend for one test that suspends boxes of the `debian` image."""
    async with open_box_host(tmp_path / "state", image_rootfs, judge=judging(verdict)) as host:
        yield Sleepy(host)
