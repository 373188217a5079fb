"""Lets obstacles pass that last for a moment.

They are connections that open, answer or close, and file notifications that a program is about to
read. A server under load has one in most moments, so a single look at a frozen box would refuse its
suspension again and again. The kernel acknowledges data while the box is frozen. All other states
change only while its processes run.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from boxd.backends.checkpoint import inotify_events, obstacles
from boxd.backends.host import cgroups

if TYPE_CHECKING:
    from boxd.backends.host.cgroups import Layout

ACKNOWLEDGEMENT = 0.25
"""Seconds to wait for acknowledgements. The kernel delays one by at most 0.2 s (TCP_DELACK_MAX)."""
MOMENTS = 8
"""How often a box may run for a moment."""
MOMENT = 0.02
"""Seconds that a box runs. Its link stays down."""
_PAUSE = 0.005


async def let_pass(layout: Layout, cgroup: str) -> str:
    """Wait until a frozen box has no such obstacle, for a bounded time. It is frozen afterwards.

    Returns a sentence about a TCP connection that is still an obstacle, or "". Raises BoxdError if
    the box cannot be frozen again.
    """
    for _ in range(MOMENTS):
        sentence, is_in_motion = await _look(layout, cgroup)
        if not is_in_motion:
            return sentence
        cgroups.thaw(layout, cgroup)
        try:
            await asyncio.sleep(MOMENT)
        finally:
            await cgroups.freeze(layout, cgroup)
    sentence, _ = await _look(layout, cgroup)
    return sentence


async def _look(layout: Layout, cgroup: str) -> tuple[str, bool]:
    """Return a sentence about a TCP connection, and whether the box has any such obstacle."""
    return await asyncio.to_thread(_find, cgroups.pids_of(layout, cgroup))


def _find(pids: list[int]) -> tuple[str, bool]:
    if obstacles.is_crowded(pids):
        return "", False
    pid = next(iter(pids), 0)
    sentence = obstacles.connected(_acknowledged(pid))
    waiting = any(map(obstacles.unaccepted, obstacles.tables(pid, "unix")))
    return sentence, bool(sentence or waiting or inotify_events.unread(pids))


def _acknowledged(pid: int) -> list[str]:
    """Return the tables of TCP once all data within the box is acknowledged, or must be."""
    deadline = time.monotonic() + ACKNOWLEDGEMENT
    while True:
        tables = obstacles.tables(pid, "tcp", "tcp6")
        if not obstacles.jammed_ports(tables) or time.monotonic() > deadline:
            return tables
        time.sleep(_PAUSE)
