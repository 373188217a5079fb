"""Compaction: replaces many small refs of a file by few, so that maps stay short.

A file that is written in small pieces (a database, a slowly growing log) collects refs. Each open,
and each read after a change, fetches all of them. Compaction copies dense ranges to one new slice.
One transaction then replaces the refs, if they are unchanged. Bytes, size, times and version of the
file stay the same. The replaced slices become garbage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.data.checksums import sums
from wrkfs.errors import Fenced, NotFound
from wrkfs.layout import BLOCK_SIZE, CHUNK_SIZE, FRAGMENTED, INLINE_MAX, FileLayout, block_key
from wrkfs.types import Extent, Ino, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wrkfs.fs import Filesystem
    from wrkfs.types import BytesLike, SliceId, SliceRef

CELL = BLOCK_SIZE
"""Number of bytes for which density is measured."""
PIECES = 16
"""Minimum number of visible pieces in a cell that is copied: 4 MiB are written to save 16 refs."""
JOINED = 4 * CELL
"""Maximum size of a stretch in bytes, unless one ref is longer."""
BATCH_FILES = 1000


async def compact_all(
    fs: Filesystem, *, refs: int = FRAGMENTED, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Compact every fragmented file; return the number of copied stretches.

    The search reads the index of all refs. Calls `progress(number of files)` after each file.
    """
    count, files, after = 0, 0, Ino(0)
    while inodes := await fs.stores.upkeep.fragmented(after, refs, BATCH_FILES):
        for ino in inodes:
            count += await compact_file(fs, ino, refs=refs)
            files += 1
            progress(files)
        after = inodes[-1]
    return count


async def compact_file(fs: Filesystem, ino: Ino, *, refs: int = FRAGMENTED) -> int:
    """Compact the chunks of a file with `refs` refs or more; return the number of stretches.

    A removed file is not an error. A stretch that changes during the copy stays for the next round.
    Raises Corrupt for bytes that the store has lost, Unavailable.
    """
    with fs.hold():
        try:
            file_map = await fs.stores.meta.file_map(ino)
        except NotFound:
            return 0
        layout = FileLayout(file_map)
        chunks: dict[int, list[SliceRef]] = {}
        for ref in file_map.refs:
            chunks.setdefault(ref.pos // CHUNK_SIZE, []).append(ref)
        count = 0
        for chunk, chunk_refs in chunks.items():
            if len(chunk_refs) >= refs:
                count += await _compact_chunk(fs, ino, layout, chunk, chunk_refs)
        return count


async def _compact_chunk(
    fs: Filesystem, ino: Ino, layout: FileLayout, chunk: int, refs: list[SliceRef]
) -> int:
    copies: list[tuple[int, int]] = []
    for start, end in stretches(layout, chunk, refs):
        data = await fs.stores.reader.read(layout, start, end, 0)
        overlaps = tuple(ref for ref in refs if ref.pos < end and start < ref.pos + ref.length)
        hidden = tuple(_hidden(layout, chunk, refs, [*copies, (start, end)]))
        if await _put(fs, ino, start, data, overlaps, hidden):
            copies.append((start, end))
        else:
            # Without this, a file that is neither read nor written again stays fragmented.
            fs.stores.note_fragmented(ino)
    return len(copies)


def stretches(
    layout: FileLayout, chunk: int, refs: Sequence[SliceRef]
) -> Iterator[tuple[int, int]]:
    """Yield the dense stretches of a chunk in file order. They have no holes and no overlaps.

    The newest ref of a stretch is completely inside it, so the copy can replace it in the order of
    refs. `refs` are the refs of the chunk, oldest first.
    """
    last = chunk * CHUNK_SIZE
    for start, end in _dense(layout, chunk):
        if start < last:
            continue
        grown = _grow(start, end, refs)
        if grown[0] >= last:
            yield grown
            last = grown[1]


def _dense(layout: FileLayout, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield the cells with many visible pieces, cut at holes. Adjacent cells are joined."""
    joined: tuple[int, int] | None = None
    for low in range(chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE, CELL):
        for start, end in _runs(layout, low, low + CELL):
            if joined is not None and joined[1] == start and end - joined[0] <= JOINED:
                joined = (joined[0], end)
                continue
            if joined is not None:
                yield joined
            joined = (start, end)
    if joined is not None:
        yield joined


def _runs(layout: FileLayout, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches without holes in [low, high) that have `PIECES` pieces or more."""
    start = end = low
    pieces = 0
    for segment in layout.between(low, high):
        if segment.start != end:
            if pieces >= PIECES:
                yield start, end
            start, pieces = segment.start, 0
        end = segment.end
        pieces += 1
    if pieces >= PIECES:
        yield start, end


def _grow(start: int, end: int, refs: Sequence[SliceRef]) -> tuple[int, int]:
    """Grow a stretch until its newest ref is completely inside."""
    for ref in reversed(refs):
        if ref.pos < end and start < ref.pos + ref.length:
            if start <= ref.pos and ref.pos + ref.length <= end:
                break
            return _grow_to(min(start, ref.pos), max(end, ref.pos + ref.length), refs)
    return start, end


def _grow_to(start: int, end: int, refs: Sequence[SliceRef]) -> tuple[int, int]:
    """Grow a stretch further, within its chunk: each growth may include a newer ref."""
    for _ in refs:
        newest = next(
            ref for ref in reversed(refs) if ref.pos < end and start < ref.pos + ref.length
        )
        wider = (min(start, newest.pos), max(end, newest.pos + newest.length))
        if wider == (start, end):
            break
        start, end = wider
    return start, end


def _hidden(
    layout: FileLayout, chunk: int, refs: Sequence[SliceRef], copies: list[tuple[int, int]]
) -> Iterator[SliceId]:
    """Yield the slices of the chunk that have no visible bytes outside the copies."""
    visible = {
        segment.ref.slice_id
        for segment in layout.between(chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE)
        if not any(start <= segment.start and segment.end <= end for start, end in copies)
    }
    for ref in refs:
        if ref.slice_id not in visible:
            yield ref.slice_id


async def _put(
    fs: Filesystem,
    ino: Ino,
    start: int,
    data: BytesLike,
    refs: tuple[SliceRef, ...],
    hidden: tuple[SliceId, ...],
) -> bool:
    """Store a copy and replace the refs with it; return False if the refs have changed."""
    stores = fs.stores
    epoch = stores.meta.epoch
    slice_id = await stores.meta.reserve_slices(1)
    size = len(data)
    if size <= INLINE_MAX:
        extent = Extent(start, slice_id, size, b"", bytes(data))
        return await _replace(fs, epoch, Stretch(ino, extent, refs, hidden))
    replaced = False
    try:
        checksums = []
        with memoryview(data) as view:
            for index, low in enumerate(range(0, size, BLOCK_SIZE)):
                block = bytes(view[low : low + BLOCK_SIZE])
                if stores.meta.epoch != epoch:
                    break
                await stores.blocks.put(block_key(stores.prefix, slice_id, index), block)
                checksums.append(sums(block))
        extent = Extent(start, slice_id, size, b"".join(checksums), None)
        replaced = await _replace(fs, epoch, Stretch(ino, extent, refs, hidden))
    finally:
        if not replaced:
            await stores.give_up({slice_id: size})
    return replaced


async def _replace(fs: Filesystem, epoch: int, stretch: Stretch) -> bool:
    """Replace the refs with the copy. Raises Fenced if the epoch that reserved its id is over.

    After that epoch, another session may have deleted the objects of the copy, and in a new epoch
    the database would not notice that.
    """
    if fs.stores.meta.epoch != epoch:
        raise Fenced("the session expired during the compaction of a file")
    return await fs.stores.meta.compact(stretch)
