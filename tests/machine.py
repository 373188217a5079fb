"""Prints in one line what this machine lacks for the tests, or that it lacks nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from boxd.backends.host import cgroups
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

DISK = 8 << 30
"""Bytes: image, servers and state directories of three workers."""
MEMORY = 4 << 30
"""Bytes: three workers, each with a PostgreSQL and some boxes."""
PROGRAMS = ("runc", "ip", "nft", "ssh", "fusermount3", "mkfs.btrfs", "mmdebstrap", "zstd")
OPTIONAL = {"go": "the suspension of a Go server is not tested"}
"""Programs that set-up does not install, and what is unproven without each."""
LIMIT_S = 30.0


def lacking() -> Iterator[str]:
    """What the tests need and this machine has not, with the figure."""
    if os.geteuid() != 0:
        yield "root (run as root)"
    here, temporary = Path.cwd(), Path(tempfile.gettempdir())
    for place in {os.stat(path).st_dev: path for path in (temporary, here)}.values():
        yield from disk(place)
    free = psutil.virtual_memory().available
    if free < MEMORY:
        yield f"memory ({_gib(free)} available, {_gib(MEMORY)} wanted)"
    if not _opens("/dev/fuse"):
        yield "FUSE (/dev/fuse cannot be opened; modprobe fuse)"
    yield from cgroup()
    if not _runs("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"):
        yield "namespaces (unshare of network, mounts and processes is refused)"
    if not _runs("unshare", "--user", "--map-root-user", "true"):
        yield "user namespaces (unshare --user is refused)"
    if not list(Path("/dev").glob("loop-control")):
        yield "loop devices (/dev/loop-control is missing; modprobe loop)"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            yield f"{program} (run `make setup-dev`)"
    for program, unproven in OPTIONAL.items():
        if shutil.which(program) is None:
            yield f"{program} ({unproven})"


def disk(place: Path) -> Iterator[str]:
    """Free bytes where tests write."""
    free = shutil.disk_usage(place).free
    if free < DISK:
        yield f"disk ({_gib(free)} free at {place}, {_gib(DISK)} wanted)"


def cgroup() -> Iterator[str]:
    """What bounds boxes."""
    try:
        layout = cgroups.detect()
    except (Unavailable, OSError) as error:
        yield f"cgroups ({error})"
        return
    if not all(os.access(root, os.W_OK) for root in layout.roots()):
        yield "cgroups (they are mounted read-only)"


def line(found: list[str]) -> str:
    """The one line."""
    return f"This machine lacks: {', '.join(found) or 'nothing'}."


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _runs(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if __name__ == "__main__":
    print(line(list(lacking())))
