"""The order of a listing is kept while the names stay, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.kept import Kept
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 10


def directory() -> Kept:
    """Of which all names are known; the later ones come first."""
    kept = Kept()
    for number in reversed(range(1, COUNT + 1)):
        kept.put(b"f%d" % number, Ino(number), number)
    kept.whole = True
    return kept


def cookies(kept: Kept, after: int, limit: int) -> list[int]:
    found = kept.listing(after, limit)
    assert found is not None
    return [one[0] for one in found]


def test_parts_are_in_the_order_of_cookies() -> None:
    kept = directory()
    assert cookies(kept, 0, 4) == [1, 2, 3, 4]
    assert cookies(kept, 4, 4) == [5, 6, 7, 8]
    assert cookies(kept, 8, 4) == [9, 10]
    assert cookies(kept, 10, 4) == []


def test_the_order_is_made_once_and_counted() -> None:
    kept = directory()
    before = len(kept)
    kept.listing(0, 1)
    order = kept.order
    assert len(kept) == before + COUNT
    kept.listing(5, 1)
    kept.put(b"f1", Ino(1))
    assert kept.order is order


def test_each_change_of_a_name_ends_it() -> None:
    changes: list[Callable[[Kept], None]] = [
        lambda kept: kept.put(b"new", Ino(99), 99),
        lambda kept: kept.take_away(b"f3"),
        lambda kept: kept.put(b"f3", Ino(98), 3),
    ]
    for change in changes:
        kept = directory()
        kept.listing(0, 1)
        change(kept)
        again = directory()
        change(again)
        assert kept.listing(0, 100) == again.listing(0, 100)


def test_without_all_names_and_their_places_there_is_none() -> None:
    kept = directory()
    kept.put(b"link", Ino(1))
    assert kept.listing(0, 100) is None
    kept = directory()
    kept.listing(0, 100)
    kept.forget(b"f3")
    assert kept.listing(0, 100) is None
    assert kept.order is None
