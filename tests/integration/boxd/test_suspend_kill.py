"""The service dies by SIGKILL at any moment of a suspension or a resumption.

A process of its own drives the backend and is killed; what it started (runc, CRIU) goes on, as it
would on a host. Then another backend is set up on the same directory and does what the service
does: whatever it finds is made a running box with its memory, or a sleeping one that can be woken.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.runc import RuncBackend
from tests.harness.backend import STAND_IN
from tests.harness.suspending import judging

if TYPE_CHECKING:
    from boxd.backends import criu
    from boxd.backends.interface import BackendBox
    from tests.harness.suspending import Guest, Sleepy

pytestmark = pytest.mark.timeout(580)

KILLS = 40
LONGEST = 1.5
"""Seconds after which a suspension or a resumption is over on a busy machine."""
REPO = Path(__file__).parents[3]
DRIVER = """
import asyncio, json, sys
from pathlib import Path
from boxd.backends import criu
from boxd.backends.runc import RuncBackend
from boxd.config import Config
from tests.harness.backend import STAND_IN
from tests.harness.suspending import judging

async def main(state, box, act, program, version, tools):
    version = tuple(json.loads(version))
    verdict = criu.Verdict(criu.Program(Path(program), version), "", suspends=True, tools=tools)
    backend = RuncBackend(Config(state_dir=Path(state)), init=STAND_IN, judge=judging(verdict))
    await backend.setup()
    print("ready", flush=True)
    sys.stdin.readline()
    if act == "suspend":
        await backend.freeze(box)
        await backend.save_memory(box)
        await backend.stop(box)
    else:
        await backend.resume(box, None)

asyncio.run(main(*sys.argv[1:]))
"""


async def cut(sleepy: Sleepy, verdict: criu.Verdict, box: str, act: str, after: float) -> None:
    """Has a process do it and kills it after some seconds."""
    assert verdict.program is not None
    words = (str(sleepy.host.config.state_dir), box, act, str(verdict.program.path))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DRIVER, *words),
        *(json.dumps(verdict.program.version), verdict.tools),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPO,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.stdin.write(b"go\n")
    await process.stdin.drain()
    await asyncio.sleep(after)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()


async def put_right(sleepy: Sleepy, verdict: criu.Verdict, guest: Guest) -> str:
    """What the service does with what it finds; returns what that was."""
    backend = RuncBackend(sleepy.host.config, init=STAND_IN, judge=judging(verdict))
    await backend.setup()
    sleepy.host.backend = backend
    (found,) = await backend.list()
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


@pytest.mark.parametrize("act", ["suspend", "resume"])
async def test_a_killed_service_loses_no_box(
    sleepy: Sleepy, verdict: criu.Verdict, act: str
) -> None:
    guest = await sleepy.guest("memory=20")
    nonce, tick = guest.state()["nonce"], 0
    chance = random.Random(act)
    seen = set()
    for number in range(KILLS):
        if act == "resume":
            tick = (await sleepy.suspend(guest))["tick"]
        await cut(sleepy, verdict, guest.box, act, LONGEST * number / KILLS * chance.random())
        seen.add(await put_right(sleepy, verdict, guest))
        state = await guest.goes_on(tick)
        assert state["nonce"] == nonce
        tick = state["tick"]
        assert await only_one(sleepy, guest)
    assert len(seen) > 1, f"the moments of the kills were all alike: {seen}"


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
