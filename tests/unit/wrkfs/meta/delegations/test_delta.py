"""The net effect of changes, as the rows of a batch."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from wrkfs.meta.delegations import delta
from wrkfs.meta.delegations.delta import Delta
from wrkfs.types import Attr, Extent, Ino, SliceId

if TYPE_CHECKING:
    from wrkfs.meta.delegations.delta import Record

HOME = Ino(7)
FILE = Ino(20)
ARRAYS = 36
"""Number of arrays that `Delta.arguments` returns."""
CUT_NAME, PUT_NAME, PUT_INO, PUT_COOKIE = 15, 17, 18, 19
EMPTIED, EXTENT_INO, GONE_INO, WASTE = 22, 23, 29, 34
"""Positions of some of the arrays."""


def attr(ino: Ino, size: int = 0) -> Attr:
    """Return attributes of a file in HOME."""
    return Attr(ino, stat.S_IFREG | 0o644, 1, 0, 0, 0, size, 1, 2, 3, 0, 0, HOME)


def extent(slice_id: int, *, inline: bytes | None = b"x") -> Extent:
    """Return an extent of one byte, or of an object."""
    checksums = b"" if inline is not None else b"0123"
    return Extent(0, SliceId(slice_id), 1, checksums, inline)


CREATION: list[Record] = [
    delta.inode_record(attr(FILE), new=True),
    delta.put_record(HOME, b"f", FILE, 20, fresh=True),
]
REMOVAL: list[Record] = [
    delta.cut_record(HOME, b"f"),
    delta.gone_record(FILE, HOME, b"f", 9, 8),
]


def made(*records: Record) -> Delta:
    """Return a delta of these changes."""
    result = Delta()
    result.replay(records)
    return result


def test_an_empty_delta_has_nothing_to_send() -> None:
    empty = Delta()
    assert not empty
    assert empty.arguments() == ([],) * ARRAYS


def test_a_new_file_is_an_inode_and_a_name() -> None:
    arguments = made(*CREATION).arguments()
    assert arguments[:2] == ([FILE], [True])
    assert (arguments[PUT_NAME], arguments[PUT_INO]) == ([b"f"], [FILE])


def test_a_file_that_exists_for_a_moment_leaves_nothing() -> None:
    arguments = made(*CREATION, delta.extent_record(FILE, extent(5)), *REMOVAL).arguments()
    assert arguments == ([],) * ARRAYS


def test_objects_of_a_file_that_exists_for_a_moment_are_garbage() -> None:
    stored = delta.extent_record(FILE, extent(5, inline=None))
    assert made(*CREATION, stored, *REMOVAL).arguments()[WASTE] == [5]


def test_a_removed_file_of_the_database_keeps_its_last_bytes() -> None:
    arguments = made(
        delta.extent_record(FILE, extent(5)), delta.inode_record(attr(FILE, 1)), *REMOVAL
    ).arguments()
    assert (arguments[0], arguments[EXTENT_INO]) == ([FILE], [FILE])
    assert (arguments[CUT_NAME], arguments[GONE_INO]) == ([b"f"], [FILE])


def test_an_emptied_file_drops_extents_of_the_same_batch() -> None:
    arguments = made(
        delta.extent_record(FILE, extent(5, inline=None)), delta.emptied_record(FILE)
    ).arguments()
    assert arguments[EMPTIED] == [FILE]
    assert arguments[EXTENT_INO] == []
    assert arguments[WASTE] == [5]


def test_a_replaced_name_keeps_its_place() -> None:
    arguments = made(delta.put_record(HOME, b"f", Ino(21), 21)).arguments()
    assert (arguments[CUT_NAME], arguments[PUT_INO]) == ([], [21])


def test_a_new_name_keeps_its_place_when_another_inode_replaces_the_first() -> None:
    replaced = delta.put_record(HOME, b"f", Ino(21), 99)
    arguments = made(*CREATION, replaced).arguments()
    assert (arguments[PUT_INO], arguments[PUT_COOKIE]) == ([21], [20])


def test_a_name_that_is_made_again_keeps_its_new_place_after_a_replacement() -> None:
    arguments = made(
        delta.cut_record(HOME, b"f"),
        delta.put_record(HOME, b"f", Ino(21), 21, fresh=True),
        delta.put_record(HOME, b"f", Ino(22), 99),
    ).arguments()
    assert arguments[CUT_NAME] == [b"f"]
    assert (arguments[PUT_INO], arguments[PUT_COOKIE]) == ([22], [21])


def test_a_name_that_is_made_again_gets_a_new_place() -> None:
    arguments = made(
        delta.cut_record(HOME, b"f"), delta.put_record(HOME, b"f", Ino(21), 21, fresh=True)
    ).arguments()
    assert arguments[CUT_NAME] == [b"f"]
    assert (arguments[PUT_NAME], arguments[PUT_INO]) == ([b"f"], [21])


def test_a_name_of_the_database_is_cut_after_another_inode_had_it() -> None:
    arguments = made(
        delta.cut_record(HOME, b"f"),
        delta.put_record(HOME, b"f", Ino(21), 21, fresh=True),
        delta.cut_record(HOME, b"f"),
    ).arguments()
    assert arguments[CUT_NAME] == [b"f"]


def test_changes_concern_an_inode_and_its_directory() -> None:
    assert made(*CREATION).touched == {FILE, HOME}


def test_contents_weigh() -> None:
    small, large = extent(5), extent(5, inline=bytes(64 << 10))
    light = made(delta.extent_record(FILE, small)).weight
    assert made(delta.extent_record(FILE, large)).weight == light + 64


@pytest.mark.parametrize("record", [("?", 1), (delta.PUT, 1), (delta.INODE, True, 1)])
def test_a_malformed_record_is_refused(record: Record) -> None:
    with pytest.raises((ValueError, TypeError)):
        made(record)
