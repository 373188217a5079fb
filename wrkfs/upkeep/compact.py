"""Compaction: many small refs of a file become few, so that maps stay short.

A file that is written in small pieces (a database, a slowly growing log) gathers refs: each open
and each read after a change fetches them all. Where they are dense, what they show is copied to one
new slice, which takes their place in one transaction if they are still as they were. Bytes, size,
times and version of the file stay as they are; what was replaced becomes garbage.
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
"""Grain in which density is looked at, bytes."""
PIECES = 16
"""Visible pieces in a cell from which on it is copied: 4 MiB are written for 16 refs less."""
JOINED = 4 * CELL
"""Longest stretch copied at once, bytes, unless a ref of its own is longer."""
BATCH_FILES = 1000


async def compact_all(
    fs: Filesystem, *, refs: int = FRAGMENTED, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Compacts every file that needs it; the number of stretches. Reads the index of all refs."""
    done, files, after = 0, 0, Ino(0)
    while found := await fs.stores.upkeep.fragmented(after, refs, BATCH_FILES):
        for ino in found:
            done += await compact_file(fs, ino, refs=refs)
            files += 1
            progress(files)
        after = found[-1]
    return done


async def compact_file(fs: Filesystem, ino: Ino, *, refs: int = FRAGMENTED) -> int:
    """Compacts the chunks of a file that have so many refs; the number of stretches it copied.

    Nothing happens to a file that is gone, or where others change what is being copied: the next
    round will do. Raises Corrupt for bytes that the store has lost, Unavailable.
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
        done = 0
        for chunk, inside in chunks.items():
            if len(inside) >= refs:
                done += await _compact_chunk(fs, ino, layout, chunk, inside)
        return done


async def _compact_chunk(
    fs: Filesystem, ino: Ino, layout: FileLayout, chunk: int, refs: list[SliceRef]
) -> int:
    copied: list[tuple[int, int]] = []
    for start, end in stretches(layout, chunk, refs):
        data = await fs.stores.reader.read(layout, start, end, 0)
        over = tuple(ref for ref in refs if ref.pos < end and start < ref.pos + ref.length)
        hidden = tuple(_hidden(layout, chunk, refs, [*copied, (start, end)]))
        if await _put(fs, ino, start, data, over, hidden):
            copied.append((start, end))
        else:
            # Who writes no more would never be met again.
            fs.stores.note_fragmented(ino)
    return len(copied)


def stretches(
    layout: FileLayout, chunk: int, refs: Sequence[SliceRef]
) -> Iterator[tuple[int, int]]:
    """Where a chunk is worth copying: stretches without holes that do not overlap, in file order.

    The newest ref in a stretch lies wholly inside, so that the copy can take its place in the
    order. `refs` are those of the chunk, oldest first.
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
    """Cells, cut at holes, with many visible pieces; neighbours are joined."""
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
    """Stretches without holes in [low, high) that show `PIECES` pieces or more."""
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
    """The stretch, larger until its newest ref lies wholly inside."""
    for ref in reversed(refs):
        if ref.pos < end and start < ref.pos + ref.length:
            if start <= ref.pos and ref.pos + ref.length <= end:
                break
            return _grow_to(min(start, ref.pos), max(end, ref.pos + ref.length), refs)
    return start, end


def _grow_to(start: int, end: int, refs: Sequence[SliceRef]) -> tuple[int, int]:
    """A newer ref may have come in with the growth; once the whole chunk is in, none can."""
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
    layout: FileLayout, chunk: int, refs: Sequence[SliceRef], copied: list[tuple[int, int]]
) -> Iterator[SliceId]:
    """Slices that show nothing in the chunk outside of what has been copied."""
    shown = {
        segment.ref.slice_id
        for segment in layout.between(chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE)
        if not any(start <= segment.start and segment.end <= end for start, end in copied)
    }
    for ref in refs:
        if ref.slice_id not in shown:
            yield ref.slice_id


async def _put(
    fs: Filesystem,
    ino: Ino,
    start: int,
    data: BytesLike,
    refs: tuple[SliceRef, ...],
    hidden: tuple[SliceId, ...],
) -> bool:
    """Stores a copy and puts it in the place of the refs; False when these have changed."""
    stores = fs.stores
    epoch = stores.meta.epoch
    slice_id = await stores.meta.reserve_slices(1)
    size = len(data)
    if size <= INLINE_MAX:
        extent = Extent(start, slice_id, size, b"", bytes(data))
        return await _replace(fs, epoch, Stretch(ino, extent, refs, hidden))
    done = False
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
        done = await _replace(fs, epoch, Stretch(ino, extent, refs, hidden))
    finally:
        if not done:
            await stores.give_up({slice_id: size})
    return done


async def _replace(fs: Filesystem, epoch: int, stretch: Stretch) -> bool:
    """Puts the copy in; Fenced when the epoch that reserved its id has ended.

    Others may have collected its objects then, and a new epoch is none the wiser.
    """
    if fs.stores.meta.epoch != epoch:
        raise Fenced("the session was cut off while a file was being compacted")
    return await fs.stores.meta.compact(stretch)
