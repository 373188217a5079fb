"""Counts what keeps the box awake without a client, which the daemon cannot see by itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from box_guest import protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from box_guest.control.link import DaemonLink

LOOK_S = 5.0
"""Seconds between two counts."""
PROC = Path("/proc")
TERMINALS = Path("/dev/pts")


def detached_shells(own: Collection[int], *, proc: Path = PROC, terminals: Path = TERMINALS) -> int:
    """Return the number of sessions with a controlling terminal, except the `own` ones.

    A session (setsid) has at most one terminal: each window of tmux or screen is one. A shell whose
    terminal was hung up no longer has one and does not count. `own` contains the ids of the
    sessions that belong to channels of the tunnel, with or without a terminal.
    """
    # This directory has few entries, while /proc may have thousands of processes.
    if not any(name.isdigit() for name in _names(terminals)):
        return 0
    sessions = set()
    for name in _names(proc):
        if name.isdigit() and (session := _session_on_terminal(proc / name)) is not None:
            sessions.add(session)
    return len(sessions.difference(own))


class Watch:
    """Reports to the daemon what keeps the box awake without a client: detached shells and
    background commands. It reports after each hello, and when a number changes.

    Each tunnel has one task that looks for changes.
    """

    def __init__(
        self, link: DaemonLink, own: Callable[[], Collection[int]], commands: Callable[[], int]
    ) -> None:
        """`own` returns the ids of the sessions that belong to commands of the daemon's clients.

        `commands` returns the number of background commands that keep the box awake.
        """
        self._link = link
        self._own = own
        self._commands = commands
        self._watching: asyncio.Task[None] | None = None
        self._reported: dict[str, int] = {}

    def count(self) -> dict[str, int]:
        """Return the current numbers: `shells` and `commands`."""
        return {"shells": detached_shells(self._own()), "commands": self._commands()}

    def report(self) -> None:
        """Report the numbers now if one has changed. Does nothing while the tunnel is down."""
        if self._watching is not None and (numbers := self.count()) != self._reported:
            self._link.tell(protocol.ACTIVITY, **numbers)
            self._reported = numbers

    def begin(self) -> None:
        """Start reporting to the daemon of a new tunnel."""
        self.end()
        self._reported = {}
        self._watching = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stop reporting, because the tunnel is down."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        while True:
            self.report()
            await asyncio.sleep(LOOK_S)


def _session_on_terminal(process: Path) -> int | None:
    try:
        text = (process / "stat").read_text("ascii", "replace")
    except OSError:
        return None  # the process has ended
    # The program's name, in parentheses, may contain anything.
    fields = text.rpartition(")")[2].split()
    session, terminal = int(fields[3]), int(fields[4])
    return session if terminal else None


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
