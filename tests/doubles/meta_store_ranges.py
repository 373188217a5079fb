"""Ranges of files in the metadata store in memory: holes that programs make, shared copies."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.doubles.meta_volume import BorrowedRef, check_resizable
from wrkfs.errors import NotFound, OutOfRange, Stale
from wrkfs.layout import CHUNK_SIZE
from wrkfs.meta import rules

if TYPE_CHECKING:
    from tests.doubles.meta_volume import MemoryVolume, Node
    from wrkfs.types import Attr, Ino, SliceRef


@dataclass(frozen=True)
class _Piece:
    """The bytes [start, end) of a file that one ref shows."""

    start: int
    end: int
    ref: SliceRef


def _within(ref: SliceRef, start: int, end: int) -> SliceRef:
    """The part of a ref that is in [start, end)."""
    low, high = max(ref.pos, start), min(ref.pos + ref.length, end)
    return replace(ref, pos=low, off=ref.off + low - ref.pos, length=high - low)


def _visible(refs: list[SliceRef], start: int, end: int) -> list[_Piece]:
    """What [start, end) shows, without overlaps, in the order of positions."""
    pieces: list[_Piece] = []
    free = [(start, end)]
    for ref in reversed(refs):
        rest = []
        for low, high in free:
            first, last = max(low, ref.pos), min(high, ref.pos + ref.length)
            if first >= last:
                rest.append((low, high))
                continue
            pieces.append(_Piece(first, last, ref))
            rest += [pair for pair in ((low, first), (last, high)) if pair[0] < pair[1]]
        free = rest
    return sorted(pieces, key=lambda piece: piece.start)


def _cut(node: Node, start: int, end: int) -> list[SliceRef]:
    """Make [start, end) a hole; return the refs that are gone."""
    kept: list[SliceRef] = []
    tails: list[SliceRef] = []
    gone: list[SliceRef] = []
    for number, ref in enumerate(node.refs):
        stop = ref.pos + ref.length
        if stop <= start or end <= ref.pos:
            kept.append(ref)
        elif start <= ref.pos and stop <= end:
            gone.append(ref)
        elif ref.pos < start and end < stop:
            kept.append(_within(ref, ref.pos, start))
            chunk = ref.pos // CHUNK_SIZE
            newer = [one for one in node.refs[number + 1 :] if one.pos // CHUNK_SIZE == chunk]
            tails += [
                _within(ref, piece.start, piece.end)
                for piece in _visible([ref, *newer], end, stop)
                if piece.ref is ref
            ]
        else:
            kept.append(_within(ref, *((ref.pos, start) if ref.pos < start else (end, stop))))
    node.refs = kept + sorted(tails, key=lambda ref: ref.pos)
    return gone


class MemoryRanges:
    """Ranges of files (`FileStore`)."""

    _volume: MemoryVolume

    def _alive(self) -> MemoryVolume:
        raise NotImplementedError

    def _file(self, ino: Ino) -> Node:
        try:
            node = self._alive().node(ino)
        except NotFound:
            raise Stale from None
        check_resizable(node.attr.mode)
        return node

    async def allocate(self, ino: Ino, start: int, length: int, *, clear: bool, grow: bool) -> Attr:
        rules.check_range(start, length)
        rules.check_writable(ino)
        volume, node = self._alive(), self._file(ino)
        own = [ref for ref in node.refs if not node.borrows(ref)]
        if not clear:
            covered = sum(piece.end - piece.start for piece in _visible(own, start, start + length))
            volume.charge(length - covered)
        size = max(node.attr.size, start + length) if grow else node.attr.size
        gone, end = [], min(start + length, node.attr.size)
        if clear and start < end:
            gone = _cut(node, start, end)
        self._changed(node, size, gone)
        return node.attr

    async def copy_range(self, source: Ino, start: int, target: Ino, to: int, length: int) -> Attr:
        rules.check_copy(source, start, target, to, length)
        rules.check_writable(target)
        origin, node = self._file(source), self._file(target)
        if start + length > origin.attr.size:
            raise OutOfRange
        pieces = _visible(origin.refs, start, start + length)
        gone = []
        if to < node.attr.size:
            gone = _cut(node, to, min(to + length, node.attr.size))
        for piece in pieces:
            node.refs += _borrowed(piece, to - start)
        self._changed(node, max(node.attr.size, to + length), gone)
        return node.attr

    def _changed(self, node: Node, size: int, gone: list[SliceRef]) -> None:
        self._volume.note_freed(node, gone)
        holes = rules.holes(((ref.pos, ref.length) for ref in node.refs), size)
        version, now = node.attr.version + 1, time.time_ns()
        node.change(size=size, holes=holes, version=version, mtime_ns=now)


def _borrowed(piece: _Piece, shift: int) -> list[SliceRef]:
    """The refs of a copied piece, cut at chunk boundaries."""
    refs: list[SliceRef] = []
    at = piece.start
    while at < piece.end:
        end = min(piece.end, at + CHUNK_SIZE - (at + shift) % CHUNK_SIZE)
        part = _within(piece.ref, at, end)
        refs.append(
            BorrowedRef(
                part.pos + shift,
                part.slice_id,
                part.size,
                part.off,
                part.length,
                part.checksums,
                part.inline,
            )
        )
        at = end
    return refs
