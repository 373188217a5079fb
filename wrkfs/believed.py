"""What the kernel may believe a file's size to be, as far as its answers tell."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wrkfs.types import Ino

PAGE = 4096
"""Least unit in which the kernel writes the pages of a mapping."""
BELIEF = 2.0
"""Seconds for which a size that has been replaced by a newer one may still come back in a request
that was on its way."""
SHOWN_MAX = 8192
"""Inodes, not open, whose last shown size is remembered."""


class BelievedSizes:
    """Tells an append from everything else that is written through an O_APPEND descriptor.

    The kernel passes on pages of a shared mapping, and writes after O_APPEND was switched off by
    fcntl(2), by the same request with the same descriptor; it does not say which it is. But an
    append comes with the offset that the kernel takes for the end of the file, and that is a size
    which it was shown or has written up to. A page that is written back lies below it.

    Critical section: none; no method waits.
    """

    __slots__ = ("_sizes",)

    def __init__(self, size: int | None = None) -> None:
        """`size` is what was shown before the file was opened; None: nobody remembers."""
        self._sizes: deque[tuple[int, float]] = deque(maxlen=16)
        if size is not None:
            self.show(size)

    def show(self, size: int) -> None:
        """An answer tells this size."""
        sizes = self._sizes
        if sizes and sizes[-1][0] == size:
            return
        now = time.monotonic()
        # The newest one has been believed until now, whenever it was told.
        if sizes:
            sizes[-1] = (sizes[-1][0], now)
        while sizes and sizes[0][1] < now - BELIEF:
            sizes.popleft()
        sizes.append((size, now))

    def wrote(self, end: int, *, appended: bool) -> None:
        """A write of the kernel ended at `end`: the file is not shorter for it.

        After an append `end` is the size for the kernel, unless it takes one from an answer that
        was under way; it refuses such an answer when the write came in between, so both count.
        """
        sizes = self._sizes
        newest = sizes[-1][0] if sizes else -1
        if any(size < end for size, _ in sizes):
            self._sizes = deque((s for s in sizes if s[0] >= end), maxlen=sizes.maxlen)
        if newest < end or appended:
            self._sizes.append((end, time.monotonic()))

    def appends(self, offset: int, length: int) -> bool:
        """Whether a write at `offset` through an O_APPEND descriptor is an append."""
        if self._sizes:
            return any(size == offset for size, _ in self._sizes)
        # Opened by a way that asks for no attributes: only whole pages can come from a mapping.
        return offset % PAGE != 0 or length % PAGE != 0


class ShownSizes:
    """The size last shown of inodes that are not open here: what the next open begins with."""

    __slots__ = ("_shown",)

    def __init__(self) -> None:
        self._shown: OrderedDict[Ino, int] = OrderedDict()

    def show(self, ino: Ino, size: int) -> None:
        """An answer tells this size."""
        self._shown[ino] = size
        if len(self._shown) > SHOWN_MAX:
            self._shown.popitem(last=False)

    def take(self, ino: Ino) -> int | None:
        """The last shown size, for who keeps it from now on; None if it is not remembered."""
        return self._shown.pop(ino, None)
