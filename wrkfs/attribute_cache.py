"""What a session shows of inodes: never older than its own changes."""

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

KNOWN_MAX = 8192
"""Inodes whose last own commit is remembered."""


class AttributeCache:
    """Corrects the attributes that the metadata store answers, and remembers what was told.

    Critical section: none, nothing here waits. `known` holds, for each inode that this session
    committed to, the attributes after the last commit: an answer that was read before that commit
    and arrives after it is corrected.
    """

    def __init__(self, meta: FileStore, kept: Callable[[Ino], Attr | None]) -> None:
        """`kept` gives attributes that somebody may rely on without asking here."""
        self._kept = kept
        self.known: OrderedDict[Ino, Attr] = OrderedDict()
        self.atimes = AccessTimes(meta)

    def learn(self, attr: Attr) -> None:
        """Keeps the attributes after an own change, unless newer ones are known."""
        known = self.known.get(attr.ino)
        if known is None or known.version <= attr.version:
            self.known[attr.ino] = attr
            self.known.move_to_end(attr.ino)
            if len(self.known) > KNOWN_MAX:
                self.known.popitem(last=False)

    def note_read(self, ino: Ino) -> None:
        """Something was read: its access time may have to move."""
        self.is_read_due(ino)
        self.atimes.read(ino)

    def is_read_due(self, ino: Ino) -> bool:
        """Whether the next read moves the access time, as far as is known here."""
        attr = self._kept(ino)
        if attr is not None:
            self.tell(self.asked, attr, None)
        return self.atimes.is_due(ino)

    @property
    def asked(self) -> int:
        """To be noted before attributes are asked for that go to `tell`."""
        return self.atimes.asked

    def tell(self, asked: int, attr: Attr, file: OpenFile | None) -> Attr:
        """Attributes as this session must show them; `file` is what is open here of the inode."""
        known = self.known.get(attr.ino)
        if known is not None and known.version > attr.version:
            attr = replace(
                attr,
                size=known.size,
                mtime_ns=known.mtime_ns,
                ctime_ns=known.ctime_ns,
                version=known.version,
                holes=known.holes,
            )
        if file is not None:
            attr = _with_dirty(attr, file)
        return self.atimes.shown(attr, asked)


def _with_dirty(attr: Attr, file: OpenFile) -> Attr:
    """With the bytes that are not committed yet; until then they count as if they filled holes."""
    writer = file.writer
    if not writer.dirty:
        return attr
    size = max(attr.size, writer.end)
    holes = max(0, attr.holes + size - attr.size - writer.amount)
    return replace(attr, size=size, mtime_ns=writer.mtime_ns, holes=holes)
