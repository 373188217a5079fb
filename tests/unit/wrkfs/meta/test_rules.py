from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wrkfs.errors import NotPermitted
from wrkfs.layout import CHECKSUM_UNIT, CHUNK_SIZE
from wrkfs.meta import rules
from wrkfs.types import Extent, SliceId


@given(
    pos=st.integers(0, 5 * CHUNK_SIZE),
    length=st.integers(1, 3 * CHUNK_SIZE),
    base=st.integers(0, 2 * CHUNK_SIZE),
)
def test_pieces_cover_an_extent_and_stay_in_their_chunks(pos: int, length: int, base: int) -> None:
    cut = list(rules.pieces(Extent(pos, SliceId(1), length, b"", None), base))
    place, off = base + pos, 0
    for piece_pos, piece_off, piece_length in cut:
        assert (piece_pos, piece_off) == (place, off)
        assert piece_length > 0
        assert piece_pos // CHUNK_SIZE == (piece_pos + piece_length - 1) // CHUNK_SIZE
        place, off = place + piece_length, off + piece_length
    assert off == length
    assert len(cut) <= length // CHUNK_SIZE + 2


@pytest.mark.parametrize(
    ("size", "units"), [(1, 1), (CHECKSUM_UNIT, 1), (CHECKSUM_UNIT + 1, 2), (1 << 26, 512)]
)
def test_four_bytes_of_checksum_per_unit(size: int, units: int) -> None:
    assert rules.checksums_length(size) == 4 * units


def test_a_node_without_type_is_a_regular_file() -> None:
    assert rules.node_mode(0o640) == stat.S_IFREG | 0o640
    assert rules.node_mode(stat.S_IFIFO | 0o4600) == stat.S_IFIFO | 0o4600
    with pytest.raises(NotPermitted):
        rules.node_mode(stat.S_IFLNK | 0o777)


def test_setgid_without_group_execution_marks_locking_and_stays() -> None:
    assert rules.without_set_ids(0o106755) == 0o100755
    assert rules.without_set_ids(0o106745) == 0o102745
