"""Write delegations in PostgreSQL: grants, batches of changes, and recalls of other sessions'.

Rules: functions/1_delegations.sql.
"""

from __future__ import annotations

import asyncio
import stat
import time
from typing import TYPE_CHECKING

from wrkfs.errors import Unavailable
from wrkfs.meta.interface.lease_times import RECALL_WAIT
from wrkfs.meta.postgres.sessions import BATCH_SLOT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import asyncpg

    from wrkfs.meta.interface.delegations import Batch
    from wrkfs.meta.postgres.links import Links
    from wrkfs.meta.postgres.sessions import MountSession
    from wrkfs.types import Ino, SessionId

_COVERED = -3
_GRANTED_MAX = 1000
_PAUSES = (0.0004, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""Seconds between two attempts to read; the last one repeats."""
_REMIND = 0.25
"""Seconds after which another recall is sent: it also fences a holder that has expired."""


class Delegations:
    """The delegations of one session, and reads that wait for those of other sessions."""

    def __init__(self, links: Links, session: MountSession) -> None:
        self._links = links
        self._session = session
        self.rescue: Callable[[], Awaitable[object]] | None = None
        """Awaited while a holder does not answer: its process on this host may be dead."""
        self.is_contended: Callable[[Ino], bool] = lambda _: False
        """Returns True for directories in which new ones are not delegated."""
        self.granted: set[Ino] = set()
        """New directories with delegations. The owner of the cache removes them."""

    async def read(self, name: str, *args: object) -> list[asyncpg.Record]:
        """Return the rows of a reading function.

        Delegations of other sessions that cover the answer are recalled first. Raises Unavailable
        if a holder does not give one back.
        """
        waits, began, reminded = 0, 0.0, 0.0
        while True:
            rows = await self._links.call(name, args)
            if not rows or rows[0][0] != _COVERED:
                return rows
            now = time.monotonic()
            began = began or now
            if now > began + RECALL_WAIT:
                raise Unavailable("another host does not give back its changes; try again")
            if now > reminded + _REMIND:
                if reminded and self.rescue is not None:
                    await self.rescue()
                # The first recall fences nobody: a journal of this host may wait for its replay.
                recall = (self._session.id, _homes(rows, args), bool(reminded))
                reminded = now
                await self._links.call("recall_delegations", recall)
            await asyncio.sleep(_PAUSES[min(waits, len(_PAUSES) - 1)])
            waits += 1

    def wants(self, parent: Ino, mode: int, new: Ino) -> bool:
        """Return whether `make` shall delegate inode `new`, and remember that in `granted`."""
        if not stat.S_ISDIR(mode) or self.is_contended(parent):
            return False
        if len(self.granted) > _GRANTED_MAX:
            self.granted.clear()  # the owner of the cache then uses no delegation
        self.granted.add(new)
        return True

    async def delegate(self, directory: Ino) -> bool:
        """Ask for the delegation of a leased directory. Return False if refused for now."""
        args = (self._session.id, self._session.epoch, directory)
        granted: bool = (await self._links.call("delegate", args))[0][0]
        return granted

    async def apply(self, seq: int, batch: Batch, release: Sequence[Ino]) -> None:
        """Apply a batch, durably and once, and end the delegations `release`.

        `seq` grows with each batch of the session. Raises Fenced, Doubtful, NoSpace, Unavailable,
        and StorageError if the batch does not fit the database.
        """
        await self._session.apply_batch(seq, (*batch.arguments(), list(release), *batch.room))

    async def claim(self, session: SessionId, epoch: int, channel: str) -> int | None:
        """Return the last batch that the database has of a session whose process is dead.

        Extends the tenure of the session. Returns None if it is fenced, or another one.
        """
        rows = await self._links.call("claim", (session, epoch, channel))
        last: int | None = rows[0][0]
        return last

    async def apply_for(self, session: SessionId, epoch: int, seq: int, batch: Batch) -> None:
        """Apply a batch of a session whose process is dead. Raises as `apply`."""
        head = (session, epoch, BATCH_SLOT, seq)
        await self._session.apply_for(head, (*batch.arguments(), [], *batch.room))

    async def reserve_room(self, size: int, inodes: int) -> bool:
        """Replace the session's reservation of quota. Return False if there is no room for it."""
        args = (self._session.id, self._session.epoch, size, inodes)
        reserved: bool = (await self._links.call("reserve_room", args))[0][0]
        return reserved


def _homes(rows: list[asyncpg.Record], args: tuple[object, ...]) -> list[object]:
    """Return inodes that a delegation covers: those in the answer, or the argument."""
    homes = [row.get("ino") for row in rows]
    return [home for home in homes if home is not None] or [args[0]]
