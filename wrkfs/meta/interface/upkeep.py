"""Upkeep of a metadata store: trash, garbage collection, the search for fragmented files.

The rules in `wrkfs.meta.interface.store` hold here too. A method that only removes data that no
session can reach needs no session, and never raises `Fenced`. No method changes anything that a
lease covers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from wrkfs.types import Ino, Place, SliceId, TrashEntry, TrashPosition


class UpkeepStore(Protocol):
    """The upkeep of one volume."""

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        """Set the function that returns the time of the oldest snapshot still in use.

        The time is on the monotonic clock; None means that no snapshot is in use. Each heartbeat
        calls the function and reports the time. Garbage collection in every session then spares the
        objects of the snapshot.
        """
        ...

    async def claim_upkeep(self, period: timedelta) -> bool:
        """Return True if this session may do the upkeep for `period`. Others get False."""
        ...

    # -- garbage --

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        """Return up to `limit` garbage slices, with their sizes in bytes.

        A garbage slice was deleted more than `grace` ago, is in no snapshot of a live session, and
        no file uses it.
        """
        ...

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        """Delete the rows of slices whose objects are gone. Idempotent."""
        ...

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        """Turn uncommitted ids of ended sessions into garbage; return counts of ranges and ids.

        The call looks at up to `limit` id ranges whose end was first seen `grace` ago or longer,
        and at 65,536 ids at most. A count of 0 ranges means that none is left. `size` is the
        maximum size of a slice in bytes.
        """
        ...

    # -- compaction --

    async def fragmented(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        """Return files beyond `after` with a chunk of `refs` refs or more, in order; [] at the end.

        `limit` is the maximum number of files.
        """
        ...

    # -- trash --

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        """Return entries removed after `after` (None: all), the oldest first; [] at the end."""
        ...

    async def list_trash_back(self, before: TrashPosition | None, limit: int) -> list[TrashEntry]:
        """Return entries removed before `before` (None: all), the newest first; [] at the end."""
        ...

    async def place(self, ino: Ino) -> Place | None:
        """Return the place of a directory, or its last place before removal; None if unknown."""
        ...

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        """Free up to `limit` entries that were removed before `until`. Return their number.

        With None, frees entries that are older than the volume's retention time. Call it until it
        returns 0.
        """
        ...

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        """Return the time up to which to purge so that the trash fits its limits; None if it fits.

        The limits are 1/`share` of the quota, and `rows` entries.
        """
        ...

    async def thin_trash(self, keep: int, limit: int) -> int:
        """Free up to `limit` files that have `keep` newer ones of the same name.

        Also frees empty directories and linked entries. Returns the number of freed entries.
        """
        ...

    async def thin_links(self, share: int, rows: int, limit: int) -> int:
        """Delete up to `limit` of the oldest linked entries beyond `rows`. Return their number.

        With an inode quota, the limit is also 1/`share` of that quota.
        """
        ...
