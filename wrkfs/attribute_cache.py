"""Attributes that a session returns: never older than its own changes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from wrkfs.atime import AccessTimes

if TYPE_CHECKING:
    from collections.abc import Callable

    from wrkfs.handle import OpenFile
    from wrkfs.meta.interface.files import FileStore
    from wrkfs.types import Attr, Ino

COMMITTED_MAX = 8192
"""Maximum number of inodes whose last own commit is remembered."""


class AttributeCache:
    """Corrects attributes that the metadata store returns.

    `committed` maps each inode to its attributes after the last commit of this session. The store
    may read attributes before that commit and answer after it; `correct` then replaces them.

    Critical section: none, no method waits.
    """

    def __init__(self, meta: FileStore, leased_attr: Callable[[Ino], Attr | None]) -> None:
        """`leased_attr` returns the attributes that a kernel may use without a request."""
        self._leased_attr = leased_attr
        self.committed: OrderedDict[Ino, Attr] = OrderedDict()
        self.atimes = AccessTimes(meta)

    def record(self, attr: Attr) -> None:
        """Cache the attributes after a change by this session, unless a newer version is known."""
        last = self.committed.get(attr.ino)
        if last is None or last.version <= attr.version:
            self.committed[attr.ino] = attr
            self.committed.move_to_end(attr.ino)
            if len(self.committed) > COMMITTED_MAX:
                self.committed.popitem(last=False)

    def clear(self) -> None:
        """Forget all commits: the database may have undone them."""
        self.committed.clear()

    def note_read(self, ino: Ino) -> None:
        """Record that an inode was read. Its access time moves if it is due."""
        self.is_read_due(ino)
        self.atimes.read(ino)

    def is_read_due(self, ino: Ino) -> bool:
        """Return True if the next read moves the access time, as far as this session knows."""
        attr = self._leased_attr(ino)
        if attr is not None:
            self.correct(self.stamp, attr, None)
        return self.atimes.is_due(ino)

    @property
    def stamp(self) -> int:
        """Number to take before a request for attributes, and to pass to `correct` afterwards."""
        return self.atimes.stamp

    def correct(self, stamp: int, attr: Attr, file: OpenFile | None) -> Attr:
        """Return attributes with the changes of this session.

        `stamp` was taken before the request. `file` is the inode's entry in the table of open
        files.
        """
        last = self.committed.get(attr.ino)
        if last is not None and last.version > attr.version:
            attr = replace(
                attr,
                size=last.size,
                mtime_ns=last.mtime_ns,
                ctime_ns=last.ctime_ns,
                version=last.version,
                holes=last.holes,
            )
        if file is not None:
            attr = _with_dirty(attr, file)
        return self.atimes.correct(attr, stamp)


def _with_dirty(attr: Attr, file: OpenFile) -> Attr:
    """Add bytes that are not committed. Until the commit they count as if they filled holes."""
    writer = file.writer
    if not writer.dirty:
        return attr
    size = max(attr.size, writer.end)
    holes = max(0, attr.holes + size - attr.size - writer.amount)
    return replace(attr, size=size, mtime_ns=writer.mtime_ns, holes=holes)
