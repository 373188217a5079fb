"""What the kernel counts for each user, and so for all boxes together: root of a box is uid 0.

With the kernel's own settings one box could use up what the others need: no files would be watched,
no pipe hold more than a page or two, and no box be suspended. Everything in `SHARES` is memory of
the box that asks for it (*measured*: 942 bytes for an inotify instance), which its cap bounds; so
the numbers are raised until that cap is met first. They are never lowered.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path("/proc/sys")
UNLIMITED = 0
"""Where the kernel takes it for no limit."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """A setting of the kernel, as `sysctl` names it, and the least that it should be."""

    name: str
    least: int

    def present(self, settings: Path = SETTINGS) -> int | None:
        """What it is; None where the kernel has no such setting."""
        try:
            return int(self.file(settings).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def file(self, settings: Path = SETTINGS) -> Path:
        """Where it is read and written."""
        return settings / self.name.replace(".", "/")

    def suffices(self, settings: Path = SETTINGS) -> bool:
        """Whether no box can use it up."""
        found = self.present(settings)
        if found is None or self.least == UNLIMITED:
            return not found
        return found >= self.least

    def __str__(self) -> str:
        return f"{self.name}={self.least}"


SHARES = (
    Share("fs.inotify.max_user_instances", 1 << 22),
    Share("fs.inotify.max_user_watches", 1 << 25),
    Share("fs.epoll.max_user_watches", 1 << 26),
    Share("fs.file-max", 1 << 26),
    Share("fs.pipe-user-pages-soft", UNLIMITED),
)


def lacking(settings: Path = SETTINGS) -> list[Share]:
    """Those of which one box can leave nothing to the others."""
    return [share for share in SHARES if not share.suffices(settings)]


def lift(settings: Path = SETTINGS) -> tuple[list[Share], list[Share]]:
    """Raises what is lacking; returns what was raised, and what could not be."""
    raised, refused = [], []
    for share in lacking(settings):
        try:
            share.file(settings).write_text(f"{share.least}\n")
        except OSError:
            refused.append(share)
        else:
            raised.append(share)
    return raised, refused


def lift_and_tell() -> None:
    """The same of this host, said in the log."""
    raised, refused = lift()
    if raised:
        _log.info("raised what all boxes share", extra={"set": " ".join(map(str, raised))})
    if refused:
        text = "one box can use up what all boxes share: /proc/sys is not writable"
        _log.warning(text, extra={"remedy": command(refused)})


def command(shares: list[Share]) -> str:
    """What an operator types to raise them."""
    return "sysctl -w " + " ".join(map(str, shares))
