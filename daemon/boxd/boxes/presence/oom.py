"""Out-of-memory reports: counts of killed processes in boxes, and the messages about them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import BoxdError, NotFound

if TYPE_CHECKING:
    from boxd.backends.interface import Backend
    from boxd.model.box import Box

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OomCounter:
    """Counts processes of one box that the kernel killed because the box's memory was full."""

    backend: Backend
    box: Box

    async def read(self) -> int:
        """Return the count since the start of the box; 0 if it cannot be read."""
        try:
            return await self.backend.oom_kills(self.box.id)
        except NotFound:
            return 0  # the box has been removed
        except (BoxdError, OSError) as error:
            _log.warning("cannot count out-of-memory kills: %s", error, extra={"box": self.box.id})
            return 0

    def sentence(self, count: int, when: str) -> str:
        """Return a message that says what happened, to what, and what to do next."""
        processes = "a process" if count == 1 else f"{count} processes"
        return (
            f"out of memory: the kernel killed {processes} of the box {when};"
            f" the box has {self.box.mem_mb} MiB: use less, or create a box of a larger flavor"
        )


class OomReports:
    """Reports each kill to one login, as long as this daemon runs.

    The kernel counts per cgroup, which ends with a suspension; so `keep` reads the count before.
    Critical section: the count of a box is read and replaced without an await in between.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """The last count of the cgroup, by box id."""
        self._unreported: dict[str, int] = {}
        """Number of kills that no login has reported yet, by box id."""

    async def news(self, counter: OomCounter) -> str | None:
        """Return a message about the kills since the last login, or None."""
        await self.keep(counter)
        unreported = self._unreported.pop(counter.box.id, 0)
        return counter.sentence(unreported, "since the last login") if unreported else None

    async def keep(self, counter: OomCounter) -> None:
        """Store the current count of a box for the next login."""
        count = await counter.read()
        box_id = counter.box.id
        before = self._counts.get(box_id, 0)
        # The cgroup of a restarted box counts from zero.
        fresh = count - before if count >= before else count
        self._counts[box_id] = count
        if fresh:
            self._unreported[box_id] = self._unreported.get(box_id, 0) + fresh

    def begin_anew(self, box_id: str) -> None:
        """Count from zero: the cgroup of the box no longer exists."""
        self._counts.pop(box_id, None)

    def forget(self, box_id: str) -> None:
        """Forget a removed box."""
        self._counts.pop(box_id, None)
        self._unreported.pop(box_id, None)
