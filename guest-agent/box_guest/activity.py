"""Shells that nobody is attached to: what of the box's life the daemon cannot see by itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from box_guest import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from box_guest.link import DaemonLink

LOOK_S = 5.0
PROC = Path("/proc")
TERMINALS = Path("/dev/pts")


def detached_shells(own: Collection[int], *, proc: Path = PROC, terminals: Path = TERMINALS) -> int:
    """How many sessions with a controlling terminal there are beside the `own` ones.

    A session (setsid) has at most one terminal: each window of tmux or screen is one. A shell whose
    terminal was hung up has none any more and does not count. `own` are the ids of the sessions
    that channels of the tunnel hold, whether on a terminal or not.
    """
    # A directory with a few names, where /proc may hold thousands of processes.
    if not any(name.isdigit() for name in _names(terminals)):
        return 0
    found = set()
    for name in _names(proc):
        if name.isdigit() and (session := _session_on_terminal(proc / name)) is not None:
            found.add(session)
    return len(found.difference(own))


class Watch:
    """Tells the daemon the number of detached shells: after each hello, and when it changed.

    There is one task for each tunnel, and it alone looks and tells.
    """

    def __init__(self, link: DaemonLink, own: Callable[[], Collection[int]]) -> None:
        """`own` gives the ids of sessions that channels of the tunnel hold."""
        self._link = link
        self._own = own
        self._watching: asyncio.Task[None] | None = None

    def count(self) -> int:
        """The number at this moment."""
        return detached_shells(self._own())

    def begin(self) -> None:
        """There is a tunnel, whose daemon knows nothing yet."""
        self.end()
        self._watching = asyncio.create_task(self._watch())

    def end(self) -> None:
        """The tunnel is gone."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        told: int | None = None
        while True:
            if (shells := self.count()) != told:
                self._link.tell(protocol.ACTIVITY, shells=shells)
                told = shells
            await asyncio.sleep(LOOK_S)


def _session_on_terminal(process: Path) -> int | None:
    try:
        text = (process / "stat").read_text("ascii", "replace")
    except OSError:
        return None  # it ended
    # The name of the program, in brackets, may hold anything.
    fields = text.rpartition(")")[2].split()
    session, terminal = int(fields[3]), int(fields[4])
    return session if terminal else None


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
