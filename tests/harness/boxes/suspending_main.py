"""One action of a backend on a box, in a process that a test can kill in the middle of it.

`python -m tests.harness.boxes.suspending_main` takes the arguments of `main`. It prints `ready`
when the backend is set up, and starts when descriptor `go` is readable.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from boxd.backends.checkpoint import criu
from boxd.backends.runc.backend import RuncBackend
from boxd.config import Config
from tests.harness.boxes.backend import STAND_IN, BoxHost
from tests.harness.boxes.suspending import judging


async def main(
    go: str,
    state: str,
    box: str,
    act: str,
    program: str,
    version: str,
    tools: str,
    rootfs: str,
    snapshot: str,
    child: str,
) -> None:
    """Run the action `act` on the box."""
    known = criu.Program(Path(program), tuple(json.loads(version)))
    verdict = criu.Verdict(known, "", suspends=True, tools=tools)
    config = Config(state_dir=Path(state))
    backend = RuncBackend(config, init=STAND_IN, judge=judging(verdict))
    await backend.setup()
    print("ready", flush=True)
    os.read(int(go), 1)
    if act == "suspend":
        await backend.freeze(box)
        await backend.save_memory(box)
        await backend.stop(box)
    elif act == "resume":
        await backend.resume(box, None)
    elif act == "snapshot":
        await backend.freeze(box)
        await backend.snapshot(box, snapshot)
        await backend.thaw(box)
    else:
        host = BoxHost(backend, config, Path(rootfs))
        await backend.clone(host.plan(box_id=child, hostname="child"), snapshot)
        await backend.resume(child, None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
