"""The order of a listing is cached while the names stay, and counts in the size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.meta.leases.cached_directory import CachedDirectory
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 10


def directory() -> CachedDirectory:
    """Of which all names are known; the later ones come first."""
    cached = CachedDirectory()
    for number in reversed(range(1, COUNT + 1)):
        cached.put(b"f%d" % number, Ino(number), number)
    cached.complete = True
    return cached


def cookies(cached: CachedDirectory, after: int, limit: int) -> list[int]:
    found = cached.listing(after, limit)
    assert found is not None
    return [one[0] for one in found]


def test_parts_are_in_the_order_of_cookies() -> None:
    cached = directory()
    assert cookies(cached, 0, 4) == [1, 2, 3, 4]
    assert cookies(cached, 4, 4) == [5, 6, 7, 8]
    assert cookies(cached, 8, 4) == [9, 10]
    assert cookies(cached, 10, 4) == []


def test_the_order_is_made_once_and_counted() -> None:
    cached = directory()
    before = len(cached)
    cached.listing(0, 1)
    order = cached.order
    assert len(cached) == before + COUNT
    cached.listing(5, 1)
    cached.put(b"f1", Ino(1))
    assert cached.order is order


def test_each_change_of_a_name_ends_it() -> None:
    changes: list[Callable[[CachedDirectory], None]] = [
        lambda cached: cached.put(b"new", Ino(99), 99),
        lambda cached: cached.put_absent(b"f3"),
        lambda cached: cached.put(b"f3", Ino(98), 3),
    ]
    for change in changes:
        cached = directory()
        cached.listing(0, 1)
        change(cached)
        again = directory()
        change(again)
        assert cached.listing(0, 100) == again.listing(0, 100)


def test_without_all_names_and_their_places_there_is_none() -> None:
    cached = directory()
    cached.put(b"link", Ino(1))
    assert cached.listing(0, 100) is None
    cached = directory()
    cached.listing(0, 100)
    cached.forget(b"f3")
    assert cached.listing(0, 100) is None
    assert cached.order is None
