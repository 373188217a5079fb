"""Mounts host files in a running box: the drive at /wrk, and kernel files that report its limits.

The mounts exist in the mount namespace of the box's init.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxd.backends.host import id_maps, mounts
from boxd.backends.host.run import run
from boxd.backends.oci import bundle
from boxd.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT = 15.0
SCRIPT = Path(__file__).with_name("attach.py")


async def attach(pid: int, pidfd: int, source: Path) -> None:
    """Mount the host's mount `source` at /wrk of the box, unless it is there already.

    `pidfd` refers to the box's init, `pid` is its number on the host. Raises Unavailable.
    """
    device = mounts.device_at(Path("/proc/self/mountinfo"), str(source))
    if device is None:
        raise Unavailable("the drive is not mounted on this host")
    if mounts.device_at(Path(f"/proc/{pid}/mountinfo"), bundle.DRIVE_DIR) == device:
        return
    await _ask(pid, pidfd, {"action": "attach", "source": str(source)})


async def detach(pid: int, pidfd: int) -> None:
    """Unmount /wrk. Raises Conflict with the names of the holders if in use, and Unavailable."""
    answer = await _ask(pid, pidfd, {"action": "detach"})
    if "holders" in answer:
        holders = ", ".join(answer["holders"])
        raise Conflict(f"{bundle.DRIVE_DIR} is in use by {holders}; cd elsewhere first")


async def replace_files(pid: int, pidfd: int, files: Mapping[str, Path]) -> None:
    """Mount host files read-only over the box's files, in place of earlier mounts there.

    Programs that have the earlier files open keep them. Raises Unavailable.
    """
    sources = {target: str(source) for target, source in files.items()}
    await _ask(pid, pidfd, {"action": "replace", "files": sources})


async def _ask(pid: int, pidfd: int, request: dict[str, Any]) -> dict[str, Any]:
    """Run the attaching process. Raises Unavailable with its error text."""
    owner = id_maps.of_process(pid)
    descriptors = [pidfd]
    users = None
    if owner is not None:
        users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        descriptors.append(users)
    facts = {"pidfd": pidfd, "target": bundle.DRIVE_DIR, "owner": owner, "users": users}
    try:
        output = await run(
            sys.executable,
            "-I",
            "-S",
            str(SCRIPT),
            stdin=json.dumps({**request, **facts}),
            pass_fds=descriptors,
            timeout=TIMEOUT,
        )
    finally:
        if users is not None:
            os.close(users)
    answer: dict[str, Any] = json.loads(output)
    if "error" in answer:
        what = "files" if "files" in request else "the drive"
        raise Unavailable(f"{request['action']} of {what} failed: {answer['error']}")
    return answer
