"""A whole metadata store. Implementations: `postgres` (real), `memory` (tests, simulation).

Every method of the three protocols is one atomic step: it takes effect wholly or not at all. When
it returns, every operation that starts afterwards, on any session, sees the effect. Mutating
methods are idempotent under the store's own retries: a connection lost after the commit never turns
into EEXIST or ENOENT.

Methods raise errors of `wrkfs.errors`: `Unavailable` after the deadline; `Fenced` once the session
has been fenced and the call has changed nothing; `Doubtful` when the outcome is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wrkfs.meta.interface.files import FileStore
from wrkfs.meta.interface.names import NameStore

if TYPE_CHECKING:
    from wrkfs.meta.interface.copies import CopyStore
    from wrkfs.meta.interface.locks import LockStore
    from wrkfs.meta.interface.upkeep import UpkeepStore


class NodeStore(NameStore, FileStore, Protocol):
    """Names and files: everything that a call of a program on the drive needs."""

    @property
    def copies(self) -> CopyStore:
        """Clones and snapshots of trees in this session."""
        ...


class MetaStore(NodeStore, Protocol):
    """Names, files, locks and upkeep of one volume, as one mount session sees them."""

    @property
    def locks(self) -> LockStore:
        """The advisory locks of this session."""
        ...

    @property
    def upkeep(self) -> UpkeepStore:
        """The upkeep of the volume in this session."""
        ...
