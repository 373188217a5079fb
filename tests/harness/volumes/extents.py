"""Creates extents for commits and assembles the bytes of a map, like a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.rules import checksums_length
from wrkfs.types import Extent, SliceId

if TYPE_CHECKING:
    from wrkfs.types import FileMap


class Objects:
    """Slices of an imaginary object store: methods create extents, and `read` finds their bytes."""

    def __init__(self) -> None:
        self._data: dict[int, bytes] = {}
        self._next = 1_000_000

    def inline(self, pos: int, data: bytes) -> Extent:
        """Return an extent whose bytes travel in the commit."""
        return Extent(pos, self._id(), len(data), b"", data)

    def stored(self, pos: int, data: bytes, slice_id: SliceId | None = None) -> Extent:
        """Return an extent whose bytes are in the object store."""
        slice_id = slice_id or self._id()
        self._data[slice_id] = data
        return Extent(pos, slice_id, len(data), b"\7" * checksums_length(len(data)), None)

    def read(self, found: FileMap) -> bytes:
        """Return the file's bytes: refs overlaid oldest first, holes as zeros."""
        content = bytearray(found.attr.size)
        for ref in found.refs:
            data = self._data[ref.slice_id] if ref.inline is None else ref.inline
            assert len(data) == ref.size
            assert ref.pos + ref.length <= found.attr.size
            content[ref.pos : ref.pos + ref.length] = data[ref.off : ref.off + ref.length]
        return bytes(content)

    def _id(self) -> SliceId:
        self._next += 1
        return SliceId(self._next)
