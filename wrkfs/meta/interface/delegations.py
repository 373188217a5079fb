"""The write delegations that a metadata store grants. Rules: functions/1_delegations.sql."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.meta.interface.leases import LeaseStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wrkfs.meta.interface.upkeep import UpkeepStore
    from wrkfs.types import Ino, SessionId


class Batch(Protocol):
    """The net effect of changes that a session decided, as rows."""

    @property
    def room(self) -> tuple[int, int]:
        """Bytes and inodes that the session still needs of its reservation afterwards."""
        ...

    def arguments(self) -> tuple[list[object], ...]:
        """Return the arrays of `wrkfs.apply`, from the inodes to the unused slices."""
        ...


class DelegationStore(LeaseStore, Protocol):
    """Names and files with leases and write delegations on directories."""

    @property
    def upkeep(self) -> UpkeepStore:
        """The upkeep of the volume in this session."""
        ...

    @property
    def delegates(self) -> bool:
        """True if the session takes write delegations."""
        ...

    granted: set[Ino]
    """Directories that `mkdir` created with a delegation. The owner of the cache removes them."""

    def watch_delegations(
        self, on_recall: Callable[[Sequence[Ino]], None], is_contended: Callable[[Ino], bool]
    ) -> None:
        """Set the function that receives the directories whose delegations others recall.

        `is_contended` returns True for directories in which `mkdir` asks for no delegation.
        """
        ...

    def keep_session(self) -> None:
        """Let `close` leave the session in the database, because its journal has changes."""
        ...

    def is_open(self, ino: Ino) -> bool:
        """Return True if the session has recorded open handles of an inode."""
        ...

    async def fresh_id(self) -> Ino:
        """Return a number for an inode or a cookie; numbers are never reused."""
        ...

    async def delegate(self, directory: Ino) -> bool:
        """Ask for the delegation of a leased directory. Return False if refused for now."""
        ...

    async def apply(self, seq: int, batch: Batch, release: Sequence[Ino]) -> None:
        """Apply a batch, durably and once, and end the delegations `release`.

        `seq` grows with each batch of the session. Raises Fenced, Doubtful, NoSpace, Unavailable,
        and StorageError if the batch does not fit the database.
        """
        ...

    def watch_journals(self, replay: Callable[[], Awaitable[set[SessionId]]]) -> None:
        """Set the function that replays the journals of dead processes of this host.

        It returns the sessions whose journals other processes have. The store awaits it before it
        fences other sessions, and while it waits for a holder.
        """
        ...

    @property
    def channel(self) -> str:
        """Random name of the session, for its journal; an empty string without leases."""
        ...

    async def claim(self, session: SessionId, epoch: int, channel: str) -> int | None:
        """Return the last batch that the database has of a session whose process is dead.

        Extends the tenure of the session for a replay. Returns None if the session is fenced, or
        is another one with the same number.
        """
        ...

    async def apply_for(self, session: SessionId, epoch: int, seq: int, batch: Batch) -> None:
        """Apply a batch of a session whose process is dead. Raises as `apply`."""
        ...

    async def fence(self, session: SessionId, *, force: bool = False) -> bool:
        """Fence another session and reclaim its files. Return False if it has not expired.

        With `force`, the process of that session is known to be dead.
        """
        ...

    async def reserve_room(self, size: int, inodes: int) -> bool:
        """Replace the session's reservation of quota. Return False if there is no room for it."""
        ...
