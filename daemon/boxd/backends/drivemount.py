"""The drive in a running box: a mount of the host at /wrk of the mount namespace of its init."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from boxd.backends import bundle, mounts
from boxd.backends.run import run
from boxd.errors import Conflict, Unavailable

TIMEOUT = 15.0
SCRIPT = Path(__file__).with_name("attach.py")


async def attach(pid: int, pidfd: int, source: Path) -> None:
    """Makes the mount at `source` appear; nothing to do when that very mount is there already.

    `pidfd` is of the box's init, `pid` its number on this host. Raises Unavailable.
    """
    wanted = mounts.device_at(Path("/proc/self/mountinfo"), str(source))
    if wanted is None:
        raise Unavailable("the drive is not mounted on this host")
    if mounts.device_at(Path(f"/proc/{pid}/mountinfo"), bundle.DRIVE_DIR) == wanted:
        return
    await _ask(pidfd, {"action": "attach", "source": str(source)})


async def detach(pidfd: int) -> None:
    """Takes it away. Raises Conflict naming the holders when it is in use, and Unavailable."""
    answer = await _ask(pidfd, {"action": "detach"})
    if "holders" in answer:
        holders = ", ".join(answer["holders"])
        raise Conflict(f"{bundle.DRIVE_DIR} is in use by {holders}; cd elsewhere first")


async def _ask(pidfd: int, request: dict[str, str]) -> dict[str, Any]:
    """Runs the attaching process; Unavailable with its words when it fails."""
    text = json.dumps({**request, "pidfd": pidfd, "target": bundle.DRIVE_DIR})
    output = await run(
        *(sys.executable, "-I", "-S", str(SCRIPT)),
        stdin=text,
        pass_fds=(pidfd,),
        timeout=TIMEOUT,
    )
    answer: dict[str, Any] = json.loads(output)
    if "error" in answer:
        raise Unavailable(f"{request['action']} of the drive failed: {answer['error']}")
    return answer
