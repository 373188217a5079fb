"""How a file's bytes are laid out in slices and blocks. Pure arithmetic.

A slice is one contiguous write. It is stored as blocks of at most `BLOCK_SIZE`, immutable objects
named `<prefix>/<slice id>/<n>`; slices of at most `INLINE_MAX` bytes stand in PostgreSQL instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wrkfs.errors import Corrupt

if TYPE_CHECKING:
    from wrkfs.types import FileMap, SliceId, SliceRef

KIB = 1024
MIB = 1024 * KIB

CHUNK_SIZE = 64 * MIB
"""Logical range of a file under which slice rows are indexed."""
BLOCK_SIZE = 4 * MIB
"""Largest object; a slice's last block may be shorter."""
SLICE_MAX = 256 * MIB
"""Largest slice: garbage collection looks for no more blocks than these."""
INLINE_MAX = 64 * KIB
"""Slices up to this size are stored in PostgreSQL, with no object at all."""
FRAGMENTED = 256
"""Refs from which on a file may need compaction: its map costs about a millisecond then."""
CHECKSUM_UNIT = 128 * KIB
"""Grain of crc32c sums inside a block, so that a ranged read can be checked."""
NAME_MAX = 255
"""Longest file name, bytes (Linux)."""
PATH_MAX = 4096
"""Longest path and symlink target, bytes (Linux)."""
LINK_MAX = 65000
"""Most hard links of one file (EMLINK above)."""
MAX_FILE_SIZE = (1 << 63) - 1
"""Largest offset that a Linux file can have."""


def block_key(prefix: str, slice_id: SliceId, index: int) -> str:
    """Object key of block `index` of a slice. `prefix` has no trailing slash."""
    return f"{prefix}/{slice_id}/{index}"


def block_count(size: int) -> int:
    """Number of blocks of a slice of `size` bytes."""
    return -(-size // BLOCK_SIZE)


def unit_count(size: int) -> int:
    """Number of checksums of a slice of `size` bytes (blocks hold whole units)."""
    return -(-size // CHECKSUM_UNIT)


@dataclass(frozen=True, slots=True)
class Segment:
    """File range [start, end) that shows bytes of one slice."""

    start: int
    end: int
    ref: SliceRef

    @property
    def slice_off(self) -> int:
        """Offset in the slice of the byte at `start`."""
        return self.ref.off + self.start - self.ref.pos


class FileLayout:
    """What each byte of a file shows: segments that do not overlap, in file order; else holes."""

    __slots__ = ("_segments", "_starts", "size", "version")

    def __init__(self, file_map: FileMap) -> None:
        """Overlays the slices, oldest first. Raises Corrupt for rows that cannot be."""
        self.size = file_map.attr.size
        self.version = file_map.attr.version
        segments: list[Segment] = []
        for ref in file_map.refs:
            _check(ref)
            end = min(ref.pos + ref.length, self.size)
            if ref.pos < end:
                _lay(segments, Segment(ref.pos, end, ref))
        self._segments = segments
        self._starts = [segment.start for segment in segments]

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments within [start, end), cut to it, in file order."""
        found = []
        index = max(0, bisect_right(self._starts, start) - 1)
        while index < len(self._segments) and self._segments[index].start < end:
            segment = self._segments[index]
            if segment.end > start:
                low, high = max(start, segment.start), min(end, segment.end)
                found.append(Segment(low, high, segment.ref))
            index += 1
        return found


def _check(ref: SliceRef) -> None:
    """Rows come from a database that the volume's owner can write: nothing in them is trusted."""
    sane = (
        ref.pos >= 0
        and ref.off >= 0
        and ref.length > 0
        and ref.off + ref.length <= ref.size
        and ref.pos + ref.length <= MAX_FILE_SIZE
        and ref.slice_id > 0
    )
    if not sane:
        raise Corrupt(f"slice {ref.slice_id} has impossible bounds")
    if ref.inline is not None:
        if len(ref.inline) != ref.size:
            raise Corrupt(f"slice {ref.slice_id} has not the length that its row tells")
    elif len(ref.checksums) != 4 * unit_count(ref.size):
        raise Corrupt(f"slice {ref.slice_id} has not one checksum for each unit")


def _lay(segments: list[Segment], new: Segment) -> None:
    """Puts a newer segment over the ones it covers."""
    if not segments or segments[-1].end <= new.start:
        segments.append(new)
        return
    first = bisect_right(segments, new.start, key=lambda segment: segment.end)
    last = bisect_left(segments, new.end, key=lambda segment: segment.start)
    pieces = [new]
    if first < last:
        left, right = segments[first], segments[last - 1]
        if left.start < new.start:
            pieces.insert(0, Segment(left.start, new.start, left.ref))
        if right.end > new.end:
            pieces.append(Segment(new.end, right.end, right.ref))
    segments[first:last] = pieces
