"""What a metadata store answers to who keeps answers: leases. Rules: functions/1_leases.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.meta.interface import MetaStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wrkfs.types import Attr, Dentry, Ino


class LeaseStore(MetaStore, Protocol):
    """A MetaStore that gives leases, and says of its answers whether they are settled.

    A settled answer of a call that began after a lease was taken may be kept and served until the
    lease is recalled or void, but never after `trusted_until`.
    """

    @property
    def trusted_until(self) -> float:
        """What is kept may be served until then (CLOCK_BOOTTIME, seconds); heartbeats move it.

        What is kept stays kept beyond it, and may be served again when it has moved.
        """
        ...

    @property
    def can_lease(self) -> bool:
        """Whether recalls would be heard now; otherwise no lease is given."""
        ...

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        on_void: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
        held: Callable[[], Sequence[Ino]],
    ) -> None:
        """Says who is told of recalls, with the directories, and that all leases are void.

        Negative numbers are inodes whose access times have moved: nobody waits then. After a recall
        the holder forgets what it keeps of these directories and calls `give_back`;
        somebody waits for it. After a crash of the database `forget` returns when nothing is kept,
        and the files that `held` gives are sustained before anybody changes anything.
        """
        ...

    async def take_lease(self, ino: Ino) -> bool:
        """Takes a lease on a directory; False: not now, and answers may not be kept."""
        ...

    async def give_back(self, inos: Sequence[Ino]) -> None:
        """Ends leases; nothing of these directories is kept any more."""
        ...

    async def sustain(self, inos: Sequence[Ino]) -> None:
        """Opens files as `open` does, all in one call, and gives no maps; each is released as ever.

        Those that are gone, or no regular files, are passed over. Errors as `open`.
        """
        ...

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        """As `lookup`, None where that raises NotFound; whether the answer is settled."""
        ...

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        """As `getattr`; whether the answer is settled."""
        ...

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        """As `readdir`; whether all of it is settled. An empty answer always is."""
        ...
