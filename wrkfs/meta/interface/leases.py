"""The leases that a metadata store grants to a caching client. Rules: functions/1_leases.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.meta.interface.store import NodeStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest
    from wrkfs.types import Attr, Dentry, Ino


class LeaseStore(NodeStore, Protocol):
    """Names and files with leases on directories; its answers say whether they are settled.

    A settled answer of a call that began after a lease was taken may be cached. The cache may serve
    it until the lease is recalled or void, but never after `trusted_until`.
    """

    @property
    def trusted_until(self) -> float:
        """Deadline of the leases (CLOCK_BOOTTIME, seconds); heartbeats extend it.

        After the deadline the cache must not serve its entries, but it may hold on to them. It may
        serve them again once a heartbeat has extended the deadline.
        """
        ...

    @property
    def can_lease(self) -> bool:
        """True if the session can receive recalls now; otherwise it gets no lease."""
        ...

    def watch_leases(
        self,
        on_recall: Callable[[Sequence[Ino]], None],
        on_void: Callable[[], None],
        forget: Callable[[], Awaitable[None]],
        held: Callable[[], Sequence[Ino]],
    ) -> None:
        """Set the functions that the store calls for its leases.

        `on_recall` receives the recalled directories. The holder then drops the cached data of
        these directories and calls `give_back`; another session waits for that. A negative number
        is an inode whose access time has moved; no session waits then. `on_void` means that all
        leases are void.

        After a crash of the database, the store awaits `forget`, which returns when the cache is
        empty. It then sustains the files that `held` returns, before any session changes anything.
        """
        ...

    async def take_lease(self, ino: Ino) -> bool:
        """Take a lease on a directory. Return False if refused for now; cache no answers then."""
        ...

    async def give_back(self, inos: Sequence[Ino]) -> None:
        """End the leases on these directories; the caller no longer caches their data."""
        ...

    async def sustain(self, inos: Sequence[Ino]) -> None:
        """Open files as `open` does, all in one call and without maps; each needs its `release`.

        Skips inodes that are gone or are not regular files. Raises as `open`.
        """
        ...

    async def find(self, parent: Ino, name: bytes) -> tuple[Attr | None, bool]:
        """Return the result of `lookup` (None instead of NotFound), and whether it is settled."""
        ...

    async def stat(self, ino: Ino) -> tuple[Attr, bool]:
        """Return the result of `getattr`, and whether it is settled."""
        ...

    async def entries(self, ino: Ino, after: int, limit: int) -> tuple[list[Dentry], bool]:
        """Return the result of `readdir`, and whether all of it is settled.

        An empty result is always settled.
        """
        ...

    async def read_tree(self, request: TreeRequest) -> TreeAnswer:
        """Return the contents of leased directories, and take leases on further directories.

        The answer may be cached under leases that the session had before the call. The new leases
        are for later calls.
        """
        ...
