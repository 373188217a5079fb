"""Clones and snapshots of trees: copies that share the slices of their source.

The rules in `wrkfs.meta.interface.store` hold here too. A copy shows its source at one moment: it
has every change that was answered before the call, and none that began after the answer. Changes of
the volume wait while a copy is made. Hard links within the tree stay hard links of each other in
the copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wrkfs.types import Attr, Ino, Snapshot


class CopyStore(Protocol):
    """Copies of whole trees of one volume."""

    async def clone(self, source: Ino, parent: Ino, name: bytes, *, replace: bool = False) -> Attr:
        """Copy an inode, with everything below it, to a free name; durable.

        The copy counts its inodes in the usage, and of its bytes only those that it changes later.
        With `replace` the name may exist: the call removes what it names in the same step, as
        `NameStore.remove_tree` does. Raises NotFound, Exists, NotDirectory, QuotaExceeded, ReadOnly
        for a name in a snapshot, and ArgumentTooBig for more than `rules.TREE_MAX` names.
        """
        ...

    async def create_snapshot(self, source: Ino, name: bytes, path: bytes) -> Snapshot:
        """Copy an inode, with everything below it, to a new snapshot; durable.

        `path` is the path of the source, for `snapshots`. Nothing in a snapshot can change: such
        calls raise ReadOnly. Raises NotFound, Exists, QuotaExceeded, ArgumentTooBig as `clone`;
        InvalidArgument for a bad name or a source in a snapshot; NoSpace beyond
        `rules.SNAPSHOTS_MAX`; Busy if the root has another entry of the name `.snapshots`.
        """
        ...

    async def snapshots(self) -> list[Snapshot]:
        """Return all snapshots, the oldest first."""
        ...

    async def remove_snapshot(self, name: bytes) -> None:
        """Remove a snapshot for good; the trash does not keep it. Raises NotFound."""
        ...
