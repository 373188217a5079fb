"""Out-of-memory kills in this box, as counted by the kernel in the box's own cgroup."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
FILES = ("memory.events", "memory/memory.oom_control")
"""Counter files of cgroup v2 and of cgroup v1."""


def kills(cgroups: Path = CGROUPS) -> int | None:
    """Return how many processes of this box the kernel killed for lack of memory, or None.

    None means that the number is unknown.
    """
    for name in FILES:
        with suppress(OSError):
            for line in (cgroups / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return None
