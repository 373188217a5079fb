"""How many bytes of output the commands of one owner keep in this process, over all of its clients.

Nobody waits: who gets no more keeps less of what comes, or fails where only the whole is of use
(buffered exec). Each stream may hold as much as is still free, so that early ones leave some to
later ones; and a little always, so that a command that says little is told whole.

Critical sections: none; nothing is awaited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from types import TracebackType

BYTES = 64 * 1024 * 1024
"""Of one owner. Fifteen streams may hold 4 MiB each."""
ALWAYS = 4 * 1024
"""Bytes that each stream may hold besides; its command costs this process more than that."""


class Allowance:
    """One owner's. `taken` is never more than `size`."""

    def __init__(self, size: int = BYTES) -> None:
        self.size = size
        self.taken = 0


class Part:
    """What one stream holds of an allowance."""

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._always = ALWAYS
        self.taken = 0

    def grow(self, size: int) -> int:
        """How many of `size` further bytes may be held."""
        given = min(size, self._always)
        self._always -= given
        free = self._allowance.size - self._allowance.taken
        more = max(0, min(size - given, (free - self.taken) // 2))
        self.taken += more
        self._allowance.taken += more
        return given + more

    def release(self) -> None:
        """Gives all of it back. Idempotent."""
        self._allowance.taken -= self.taken
        self.taken = 0


class Room:
    """What one call holds of an allowance. A context: at its end all of it is given back."""

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
        """For one more stream."""
        part = Part(self._allowance)
        self._parts.append(part)
        return part


class Allowances:
    """Those of all owners of whom something is kept."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[str, Allowance] = WeakValueDictionary()

    def room(self, owner: str) -> Room:
        """Room for one more call of an owner."""
        found = self._known.get(owner)
        if found is None:
            self._known[owner] = found = Allowance()
        return Room(found)
