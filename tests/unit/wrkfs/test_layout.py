"""Overlay of slices, and rejection of invalid rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wrkfs.errors import Corrupt
from wrkfs.layout import (
    BLOCK_SIZE,
    CHECKSUM_UNIT,
    FileLayout,
    block_count,
    block_key,
    unit_count,
)
from wrkfs.types import Attr, Extent, FileMap, Ino, SliceId, SliceRef

ATTR = Attr(Ino(2), 0o100644, 1, 0, 0, 0, 100, 0, 0, 0, 7)


def ref(
    pos: int, length: int, slice_id: int = 1, off: int = 0, size: int | None = None
) -> SliceRef:
    size = off + length if size is None else size
    return SliceRef(pos, SliceId(slice_id), size, off, length, b"", bytes(size))


def layout(refs: list[SliceRef], size: int = 100) -> FileLayout:
    return FileLayout(FileMap(replace(ATTR, size=size), tuple(refs)))


def shown(made: FileLayout, size: int) -> list[int]:
    """Return for each byte of the file its visible slice, 0 for a hole."""
    result = [0] * size
    for segment in made.between(0, size):
        for at in range(segment.start, segment.end):
            assert result[at] == 0, "segments overlap"
            result[at] = segment.ref.slice_id
    return result


def test_newer_slices_cover_older_ones() -> None:
    made = layout([ref(0, 30, 1), ref(10, 10, 2), ref(25, 10, 3)])
    assert shown(made, 40) == [1] * 10 + [2] * 10 + [1] * 5 + [3] * 10 + [0] * 5


def test_a_covered_slice_keeps_its_place_in_its_bytes() -> None:
    made = layout([ref(0, 30, 1), ref(10, 10, 2)])
    tail = made.between(20, 30)[0]
    assert (tail.start, tail.end, tail.slice_off) == (20, 30, 20)


def test_nothing_shows_beyond_the_file_size() -> None:
    made = layout([ref(0, 30), ref(90, 30, 2)], size=95)
    assert shown(made, 120) == [1] * 30 + [0] * 60 + [2] * 5 + [0] * 25


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=8), st.integers(1, 100))
def test_data_and_holes_are_what_is_shown(writes: list[tuple[int, int]], size: int) -> None:
    made = layout([ref(pos, length) for pos, length in writes], size)
    visible = shown(made, size)
    for offset in range(size):
        data = [at for at in range(offset, size) if visible[at]]
        assert made.next_data(offset) == (data[0] if data else None)
        holes = [at for at in range(offset, size) if not visible[at]]
        assert made.next_hole(offset) == (holes[0] if holes else size)


def test_between_is_cut_to_the_range() -> None:
    segments = layout([ref(0, 50)]).between(10, 20)
    assert [(s.start, s.end, s.slice_off) for s in segments] == [(10, 20, 10)]
    assert layout([ref(0, 50)]).between(60, 70) == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=12))
def test_overlay_equals_writing_in_order(writes: list[tuple[int, int]]) -> None:
    expected = [0] * 80
    refs = []
    for number, (pos, length) in enumerate(writes, 1):
        refs.append(ref(pos, length, number))
        expected[pos : pos + length] = [number] * length
    assert shown(layout(refs, 80), 80) == expected


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 50),
)
def test_an_extended_layout_is_that_of_all_slices(
    writes: list[tuple[int, int]], first: int, base: int
) -> None:
    refs = [
        ref(pos + (base if n >= first else 0), length, n + 1)
        for n, (pos, length) in enumerate(writes)
    ]
    size = max(one.pos + one.length for one in refs)
    before = max((one.pos + one.length for one in refs[:first]), default=0)
    extents = [
        Extent(one.pos - base, one.slice_id, one.length, b"", one.inline) for one in refs[first:]
    ]
    attr = replace(ATTR, size=size, version=9)
    made = layout(refs[:first], before).extended(extents, base, attr)
    assert shown(made, size) == shown(layout(refs, size), size)
    assert (made.size, made.version) == (size, 9)


@pytest.mark.parametrize(
    "bad",
    [
        ref(-1, 5),
        ref(0, -5, size=5),
        ref(0, 0, size=5),
        ref(0, 5, off=-1, size=5),
        ref(0, 10, off=5, size=10),
        ref((1 << 63) - 3, 10),
        ref(0, 5, slice_id=0),
        replace(ref(0, 5), inline=b"12345678"),
        replace(ref(0, 5), inline=None, checksums=b""),
        replace(ref(0, 5), inline=None, checksums=b"12345678"),
    ],
)
def test_impossible_rows_are_refused(bad: SliceRef) -> None:
    with pytest.raises(Corrupt):
        layout([bad])


def test_arithmetic() -> None:
    assert block_key("v1", SliceId(7), 3) == "v1/7/3"
    assert [block_count(n) for n in (1, BLOCK_SIZE, BLOCK_SIZE + 1)] == [1, 1, 2]
    assert [unit_count(n) for n in (1, CHECKSUM_UNIT, CHECKSUM_UNIT + 1)] == [1, 1, 2]
