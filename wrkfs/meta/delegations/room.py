"""Room in the quota that a session has reserved for the changes that it decides by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.meta.interface.delegations import DelegationStore
    from wrkfs.types import StatFs

BYTES_AHEAD = 256 << 20
INODES_AHEAD = 8192
"""Size of a reservation: about what one batch can use."""
REFRESH = 2.0
"""Seconds after which a session without a quota asks whether the volume has one now."""
SHARE = 8
"""A reservation takes at most this part (1/8) of what the quota has left."""


class Room:
    """The reservation of one session. A volume without a quota needs none.

    Critical section: `_extend` is the only method that waits, and one call of it runs at a time.
    """

    def __init__(self, inner: DelegationStore) -> None:
        self._inner = inner
        self._limited = True
        self._bytes = self._inodes = 0
        self._checked = 0.0

    async def start(self) -> None:
        """Read whether the volume has a quota. Raises Unavailable."""
        self._bytes = self._inodes = 0
        self.note(await self._inner.statfs())

    def note(self, usage: StatFs) -> None:
        """Record whether the volume has a quota now."""
        self._limited = usage.bytes_limit is not None or usage.inodes_limit is not None
        self._checked = time.monotonic()

    async def refresh(self) -> None:
        """Read again whether the volume has a quota, if that was read long ago."""
        if not self._limited and time.monotonic() > self._checked + REFRESH:
            self._checked = time.monotonic()
            self.note(await self._inner.statfs())

    def left(self) -> tuple[int, int]:
        """Return bytes and inodes of the reservation that are not used."""
        return (self._bytes, self._inodes) if self._limited else (0, 0)

    def covers(self, size: int, inodes: int) -> bool:
        """Return True if `take` would succeed."""
        if not self._limited or (size <= 0 and inodes <= 0):
            return True
        return max(size, 0) <= self._bytes and inodes <= self._inodes

    def take(self, size: int, inodes: int) -> bool:
        """Use bytes and inodes of the reservation. Return False, and use none, if it is short."""
        if not self.covers(size, inodes):
            return False
        if self._limited:
            self._bytes -= max(size, 0)
            self._inodes -= inodes
        return True

    def put_back(self, size: int, inodes: int) -> None:
        """Return what `take` used for a change that was not made."""
        if self._limited:
            self._bytes += max(size, 0)
            self._inodes += inodes

    async def give_back(self) -> bool:
        """End the reservation. Return False if there was none."""
        if not (self._bytes or self._inodes):
            return False
        self._bytes = self._inodes = 0
        return await self._inner.reserve_room(0, 0)

    async def extend(self, size: int, inodes: int) -> bool:
        """Reserve more, for a change of this size. Return False if the quota has too little left.

        The caller has sent every earlier change, so that the usage is exact.
        """
        usage = await self._inner.statfs()
        self.note(usage)
        size_ahead = _part(usage.bytes_limit, usage.bytes_used, BYTES_AHEAD)
        inodes_ahead = _part(usage.inodes_limit, usage.inodes_used, INODES_AHEAD)
        if size > size_ahead or inodes > inodes_ahead:
            return not self._limited
        if not await self._inner.reserve_room(size_ahead, inodes_ahead):
            return not self._limited
        self._bytes, self._inodes = size_ahead, inodes_ahead
        return True


def _part(limit: int | None, used: int, most: int) -> int:
    return most if limit is None else min(most, max(limit - used, 0) // SHARE)
