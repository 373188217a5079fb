"""Bytes of command output that this process buffers for one owner, over all of its clients.

No stream waits for room. A stream without more room buffers less of its output, or fails if only
the whole output is useful (buffered exec). A stream may hold at most as many bytes as stay free,
which leaves room for later streams. Each stream may also buffer a small amount that does not count,
so short output is always complete.

Critical sections: none; no method awaits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from boxd.boxes.limits.budgets.owner_map import OwnerMap

if TYPE_CHECKING:
    from types import TracebackType

BYTES = 64 * 1024 * 1024
"""The allowance of one owner. It is enough for fifteen streams of 4 MiB each."""
ALWAYS = 4 * 1024
"""Bytes of each stream that do not count. The command itself costs this process more."""


class Allowance:
    """The bytes of one owner. `taken` is never more than `size`."""

    def __init__(self, size: int = BYTES) -> None:
        self.size = size
        self.taken = 0


class Part:
    """The bytes that one stream has taken from an allowance."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._always = ALWAYS
        self.taken = 0

    def grow(self, size: int) -> int:
        """Return how many of `size` further bytes the stream may buffer."""
        free_of_charge = min(size, self._always)
        self._always -= free_of_charge
        free = self._allowance.size - self._allowance.taken
        # This stream then holds at most as much as stays free for others.
        more = max(0, min(size - free_of_charge, (free - self.taken) // 2))
        self.taken += more
        self._allowance.taken += more
        return free_of_charge + more

    def release(self) -> None:
        """Return all bytes to the allowance. Idempotent."""
        self._allowance.taken -= self.taken
        self.taken = 0


class Room:
    """The bytes that one call has taken from an allowance. The end of the context returns them."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._parts: list[Part] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        for part in self._parts:
            part.release()

    def part(self) -> Part:
        """Return the part of one more stream."""
        part = Part(self._allowance)
        self._parts.append(part)
        return part


class Allowances:
    """The allowances of all owners with buffered output."""

    def __init__(self) -> None:
        self.owners = OwnerMap(lambda: Allowance())

    def room(self, owner: str) -> Room:
        """Return room for one more call of an owner."""
        return Room(self.owners.of(owner))
