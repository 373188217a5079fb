"""The directories that boxes share with the service, and the sockets of their tunnels.

Only root and the box, through its read-only mount, can read such a directory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import socket
from pathlib import Path

from box_guest import protocol
from boxd.backends.host import mounts
from boxd.cancellation import ended

MOUNTS = Path("/proc/self/mountinfo")
_ID = re.compile(r"[0-9a-f]{32}")


class RunDirectories:
    """The run directories of all boxes, `BOXES/<box id>/run`. Holds no state of its own."""

    def __init__(self, boxes: Path) -> None:
        """`boxes` contains a directory for each box."""
        self._boxes = boxes

    def path(self, box_id: str) -> Path:
        """Return the run directory of a box."""
        return self._boxes / box_id / "run"

    async def write(self, box_id: str, config: str, private_key: bytes) -> None:
        """Write the agent's configuration and host key; create the directory. Raises OSError."""
        write = asyncio.to_thread(_write, self.path(box_id), config, private_key)
        # A thread outlives the cancellation of its caller. A removal of the box would race with it.
        await ended(asyncio.ensure_future(write))

    async def exists(self, box_id: str) -> bool:
        """Return whether the box has a run directory on this host."""
        return await asyncio.to_thread(self.path(box_id).exists)

    async def box_ids(self) -> set[str]:
        """Return the ids of all boxes that have a directory on this host, complete or not."""
        return await asyncio.to_thread(self._box_ids)

    def _box_ids(self) -> set[str]:
        if not self._boxes.exists():
            return set()
        return {path.name for path in self._boxes.iterdir() if _ID.fullmatch(path.name)}

    async def remove(self, box_id: str) -> None:
        """Remove the rest of a box's directory. No error if there is none.

        Fails at a mount point instead of crossing it. Raises OSError.
        """
        await asyncio.to_thread(_remove_tree, self._boxes / box_id)

    async def bind(self, box_id: str) -> socket.socket:
        """Return the bound socket on which the service listens for the box's agent.

        Replaces one of an earlier call. Raises OSError.
        """
        return bind_tunnel(self.path(box_id))


def bind_tunnel(directory: Path) -> socket.socket:
    """Return a socket bound in a run directory; replaces an earlier one. Raises OSError."""
    path = directory / protocol.TUNNEL_SOCKET
    path.unlink(missing_ok=True)
    # The kernel accepts 107 bytes of path; through the directory's descriptor any length works.
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        path.chmod(0o600)
    except BaseException:
        bound.close()
        raise
    finally:
        os.close(descriptor)
    return bound


def _write(run_dir: Path, config: str, private_key: bytes) -> None:
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write_private(run_dir / protocol.AGENT_CONFIG, config.encode())
    _write_private(run_dir / protocol.HOST_KEY, private_key)


def _write_private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def _remove_tree(path: Path) -> None:
    if any(place.startswith(f"{path}/") for place in mounts.mount_points(MOUNTS)):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
    if path.exists():
        shutil.rmtree(path)
