"""Fixtures `verdict` and `sleepy`: boxes that are suspended and resumed for real.

Where there is no CRIU the tests fail: `scripts/criu` says why. What it can is tried once and
remembered in `/var/cache/boxd-tests`.
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
        """What it last said; empty before it has said anything."""
        place = self.host.names.paths(self.box).root / str(guest.STATE).lstrip("/")
        try:
            state: dict[str, Any] = json.loads(place.read_text())
        except FileNotFoundError:
            return {}
        return state

    def tick(self) -> int:
        """Its counter; 0 before it runs."""
        return int(self.state().get("tick", 0))

    async def goes_on(self, after: int = 0) -> dict[str, Any]:
        """Waits until its counter has passed a value, or what it is now."""
        after = after or self.tick()
        await until(lambda: self.tick() > after)
        return self.state()


@dataclass
class Sleepy:
    """A host whose boxes can be suspended."""

    host: BoxHost

    async def guest(self, *words: str, box: str = "", **plan: object) -> Guest:
        """Starts the program in a box, a new one unless it is named; returns when it counts."""
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
        """Where the memory of a sleeping box is."""
        state = self.host.config.state_dir
        (place,) = (*state.glob(f"boxes/{box}/memory"), *state.glob(f"disks/boxes/{box}/memory"))
        return place

    async def suspend(self, guest: Guest) -> dict[str, Any]:
        """All steps of a suspension; returns the state in which it sleeps."""
        backend = self.host.backend
        await backend.freeze(guest.box)
        asleep = guest.state()
        await backend.save_memory(guest.box)
        await backend.stop(guest.box)
        return asleep

    async def resume(self, guest: Guest, drive: Path | None = None) -> None:
        """Has it run on."""
        await self.host.backend.resume(guest.box, drive)


@pytest.fixture(scope="session")
def verdict() -> criu.Verdict:
    """Whether boxes can be suspended on this machine, tried with a real one."""
    TRIED.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (TRIED / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # parallel test workers share the directory
        found = run(criu.verdict(TRIED))
    if found.program is None or not found.program.suffices:
        pytest.fail(f"there is no CRIU 4.3 for the tests; run scripts/criu: {found.text}")
    assert found.suspends, found.text
    return found


def judging(verdict: criu.Verdict) -> Callable[[Path], Awaitable[criu.Verdict]]:
    """A judge that has made up its mind."""

    async def judge(state_dir: Path) -> criu.Verdict:
        del state_dir
        return verdict

    return judge


@pytest_asyncio.fixture
async def sleepy(
    tmp_path: Path, image_rootfs: Path, verdict: criu.Verdict
) -> AsyncIterator[Sleepy]:
    """A runc backend of the test's own that suspends boxes of the `debian` image."""
    async with open_box_host(tmp_path / "state", image_rootfs, judge=judging(verdict)) as host:
        yield Sleepy(host)
