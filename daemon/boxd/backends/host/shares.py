"""Raises kernel limits that all boxes share: they also count for the creator of a user namespace.

With the kernel's defaults, one box could use up what other boxes need. Then no box could watch
files or be suspended, and pipes would hold only a page or two. Everything in `SHARES` uses memory
of the box that requests it, so the box's memory limit bounds it. *Measured*: 942 bytes for an
inotify instance. The service raises the kernel limits so far that the memory limit is reached
first. It never lowers them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path("/proc/sys")
UNLIMITED = 0
"""A value that the kernel interprets as no limit."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """A kernel setting, named as by `sysctl`, and its minimum."""

    name: str
    least: int

    def present(self, settings: Path = SETTINGS) -> int | None:
        """Return the current value, or None if the kernel does not have the setting."""
        try:
            return int(self.file(settings).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def file(self, settings: Path = SETTINGS) -> Path:
        """Return the file of the setting."""
        return settings / self.name.replace(".", "/")

    def suffices(self, settings: Path = SETTINGS) -> bool:
        """Return whether the value is high enough that one box cannot use it up."""
        value = self.present(settings)
        if value is None or self.least == UNLIMITED:
            return not value
        return value >= self.least

    def __str__(self) -> str:
        return f"{self.name}={self.least}"


SHARES = (
    Share("fs.inotify.max_user_instances", 1 << 22),
    Share("fs.inotify.max_user_watches", 1 << 25),
    Share("fs.epoll.max_user_watches", 1 << 26),
    Share("fs.file-max", 1 << 26),
    Share("fs.pipe-user-pages-soft", UNLIMITED),
    Share("kernel.pty.max", 1 << 20),
)


def lacking(settings: Path = SETTINGS) -> list[Share]:
    """Return the settings that one box could use up."""
    return [share for share in SHARES if not share.suffices(settings)]


def lift(settings: Path = SETTINGS) -> tuple[list[Share], list[Share]]:
    """Raise insufficient settings. Return those raised, and those that could not be raised."""
    raised, refused = [], []
    for share in lacking(settings):
        try:
            share.file(settings).write_text(f"{share.least}\n")
        except OSError:
            refused.append(share)
        else:
            raised.append(share)
    return raised, refused


def lift_and_log() -> None:
    """Raise the settings of this host and log the result."""
    raised, refused = lift()
    if raised:
        settings = " ".join(map(str, raised))
        _log.info("raised kernel limits that boxes share", extra={"set": settings})
    if refused:
        text = "one box can use up kernel limits that boxes share: /proc/sys is not writable"
        _log.warning(text, extra={"remedy": command(refused)})


def command(shares: list[Share]) -> str:
    """Return the command with which an operator raises settings."""
    return "sysctl -w " + " ".join(map(str, shares))
