"""The layout of a file's bytes in slices and blocks. Pure arithmetic.

A slice is one contiguous write. It is stored as blocks of at most `BLOCK_SIZE`, which are immutable
objects named `<prefix>/<slice id>/<n>`. Slices of at most `INLINE_MAX` bytes are in PostgreSQL.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt
from wrkfs.types import FileMap, SliceRef

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wrkfs.types import Attr, Extent, SliceId

KIB = 1024
MIB = 1024 * KIB

CHUNK_SIZE = 64 * MIB
"""Bytes of a file that one key of the slice index covers."""
BLOCK_SIZE = 4 * MIB
"""Maximum size of an object; a slice's last block may be shorter."""
SLICE_MAX = 256 * MIB
"""Maximum size of a slice, and so of the blocks that garbage collection deletes for an id."""
INLINE_MAX = 64 * KIB
"""Maximum size of a slice that PostgreSQL stores, without an object."""
FRAGMENTED = 256
"""Number of refs from which a file may need compaction: then its map takes about a millisecond."""
CHECKSUM_UNIT = 128 * KIB
"""Number of bytes of one crc32c sum. A ranged read of whole units can be checked."""
NAME_MAX = 255
"""Maximum length of a file name, in bytes (Linux)."""
PATH_MAX = 4096
"""Maximum length of a path or symlink target, in bytes (Linux)."""
MAX_FILE_SIZE = (1 << 63) - 1
"""Maximum size of a Linux file."""


def block_key(prefix: str, slice_id: SliceId, index: int) -> str:
    """Return the object key of block `index` of a slice. `prefix` has no trailing slash."""
    return f"{prefix}/{slice_id}/{index}"


def block_count(size: int) -> int:
    """Return the number of blocks of a slice of `size` bytes."""
    return -(-size // BLOCK_SIZE)


def unit_count(size: int) -> int:
    """Return the number of checksums of a slice of `size` bytes. Blocks contain whole units."""
    return -(-size // CHECKSUM_UNIT)


@dataclass(frozen=True, slots=True)
class Segment:
    """File range [start, end) whose bytes are in one slice."""

    start: int
    end: int
    ref: SliceRef

    @property
    def slice_off(self) -> int:
        """Offset in the slice of the byte at `start`."""
        return self.ref.off + self.start - self.ref.pos


class FileLayout:
    """The segments of a file in order, without overlaps. Ranges without a segment are holes."""

    __slots__ = ("_segments", "_starts", "size", "version")

    def __init__(self, file_map: FileMap) -> None:
        """Overlay the slices, oldest first. Raises Corrupt for invalid rows."""
        self.size = file_map.attr.size
        self.version = file_map.attr.version
        segments: list[Segment] = []
        for ref in file_map.refs:
            _check(ref)
            end = min(ref.pos + ref.length, self.size)
            if ref.pos < end:
                _overlay(segments, Segment(ref.pos, end, ref))
        self._segments = segments
        self._starts = [segment.start for segment in segments]

    def extended(self, extents: Iterable[Extent], base: int, attr: Attr) -> FileLayout:
        """Return the layout after a commit of extents that was answered with these attributes.

        `base` is added to the offset of each extent. No other change may have come between.
        """
        layout = FileLayout(FileMap(attr, ()))
        segments = self._segments[:]
        for extent in extents:
            pos, size = base + extent.pos, extent.length
            ref = SliceRef(pos, extent.slice_id, size, 0, size, extent.checksums, extent.inline)
            _overlay(segments, Segment(pos, pos + size, ref))
        layout._segments = segments
        layout._starts = [segment.start for segment in segments]
        return layout

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._segments)

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments within [start, end), cut to that range, in file order."""
        segments = []
        index = max(0, bisect_right(self._starts, start) - 1)
        while index < len(self._segments) and self._segments[index].start < end:
            segment = self._segments[index]
            if segment.end > start:
                low, high = max(start, segment.start), min(end, segment.end)
                segments.append(Segment(low, high, segment.ref))
            index += 1
        return segments

    def next_data(self, offset: int) -> int | None:
        """Return the first offset >= `offset` that a segment covers; None if there is none."""
        index = max(0, bisect_right(self._starts, offset) - 1)
        for segment in self._segments[index : index + 2]:
            if segment.end > offset:
                return max(offset, segment.start)
        return None

    def next_hole(self, offset: int) -> int:
        """Return the first offset >= `offset` that no segment covers. `offset` is in the file."""
        index = max(0, bisect_right(self._starts, offset) - 1)
        while index < len(self._segments):
            segment = self._segments[index]
            if segment.start > offset:
                break
            offset = max(offset, segment.end)
            index += 1
        return offset


def _check(ref: SliceRef) -> None:
    """Check a row. Rows are not trusted, because the volume's owner can write the database."""
    valid = (
        ref.pos >= 0
        and ref.off >= 0
        and ref.length > 0
        and ref.off + ref.length <= ref.size
        and ref.pos + ref.length <= MAX_FILE_SIZE
        and ref.slice_id > 0
    )
    if not valid:
        raise Corrupt(f"the row of slice {ref.slice_id} has an impossible offset or length")
    if ref.inline is not None:
        if len(ref.inline) != ref.size:
            raise Corrupt(
                f"slice {ref.slice_id} has {len(ref.inline)} bytes; its row says {ref.size}"
            )
    elif len(ref.checksums) != 4 * unit_count(ref.size):
        raise Corrupt(f"slice {ref.slice_id} has a wrong number of checksums")


def _overlay(segments: list[Segment], new: Segment) -> None:
    """Insert a newer segment; it replaces the parts of segments that it covers."""
    if not segments or segments[-1].end <= new.start:
        segments.append(new)
        return
    first = bisect_right(segments, new.start, key=lambda segment: segment.end)
    last = bisect_left(segments, new.end, key=lambda segment: segment.start)
    pieces = [new]
    if first < last:
        first_old, last_old = segments[first], segments[last - 1]
        if first_old.start < new.start:
            pieces.insert(0, Segment(first_old.start, new.start, first_old.ref))
        if last_old.end > new.end:
            pieces.append(Segment(new.end, last_old.end, last_old.ref))
    segments[first:last] = pieces
