"""What upkeep asks of a metadata store: trash, garbage collection, compaction.

Part of `interface.MetaStore`, whose rules hold here too. What only removes what nobody can reach
needs no session and never raises `Fenced`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime, timedelta

    from wrkfs.types import Attr, Ino, Place, SliceId, Stretch, TrashEntry


class UpkeepStore(Protocol):
    """The upkeep of one volume."""

    def watch_snapshots(self, oldest: Callable[[], float | None]) -> None:
        """Says who knows when the oldest snapshot that is still read was taken.

        By the monotonic clock; None: nothing old is read. Each heartbeat asks and tells it, and
        garbage collection of any session leaves what it shows.
        """
        ...

    async def claim_upkeep(self, period: timedelta) -> bool:
        """Whether this session may do the upkeep for the next `period`; one at a time may."""
        ...

    # -- garbage --

    async def garbage(self, grace: timedelta, limit: int) -> list[tuple[SliceId, int]]:
        """Slices, with their sizes, whose objects nobody can need any more.

        Deleted longer than `grace` ago, shown by no snapshot of a live session, in no use.
        """
        ...

    async def forget_slices(self, slices: Sequence[SliceId]) -> None:
        """The objects of these slices are gone. Idempotent."""
        ...

    async def give_up(self, slices: Mapping[SliceId, int]) -> None:
        """These ids (with sizes in bytes) were, as far as is known, never committed. Idempotent.

        After it they are in use already, or never will be: no call of this session that failed
        before can still commit them.
        """
        ...

    async def drop_ranges(self) -> None:
        """This session closes, and each id it took has been committed or given up."""
        ...

    async def adopt_orphans(self, grace: timedelta, limit: int, size: int) -> tuple[int, int]:
        """Makes garbage of what ended sessions left uncommitted; numbers of ranges and of ids.

        Looks at up to `limit` ranges of ids whose end was first seen `grace` ago or longer, and at
        65,536 ids at most; no range: nothing is left. `size`: bytes that a slice may have at most.
        """
        ...

    # -- compaction --

    async def compact(self, stretch: Stretch) -> bool:
        """Puts a copy in the place of many refs; False when these have changed since.

        Newer refs that cover old ones, or overlay the copy, are no change. InvalidArgument unless
        the copy is inline or its id was reserved by this session in its present epoch.
        """
        ...

    async def ragged(self, after: Ino, refs: int, limit: int) -> list[Ino]:
        """Files beyond `after` with a chunk of `refs` refs or more, in order; [] at the end."""
        ...

    # -- trash --

    async def list_trash(self, after: TrashEntry | None, limit: int) -> list[TrashEntry]:
        """Entries removed after `after` (None: all), the oldest first; [] at the end."""
        ...

    async def place(self, ino: Ino) -> Place | None:
        """Where a directory is, or was before it was removed. None: nobody knows."""
        ...

    async def restore(self, ino: Ino, parent: Ino, name: bytes) -> Attr:
        """Gives an inode of the trash a name; a directory comes back empty.

        NotFound (not in the trash, or no such directory), NotDirectory, Exists, QuotaExceeded; Busy
        while a removed tree is still being taken apart.
        """
        ...

    async def purge_trash(self, until: datetime | None, limit: int) -> int:
        """Frees up to `limit` entries that were removed until then; how many it were.

        None: those that are older than the volume keeps them. Call it until it answers 0.
        """
        ...

    async def trash_excess(self, share: int, rows: int) -> datetime | None:
        """Until when to purge so that the trash keeps at most 1/share of the quota, and `rows`."""
        ...

    async def thin_trash(self, keep: int, limit: int) -> int:
        """Frees up to `limit` files that have `keep` newer ones of the same name; how many."""
        ...
