"""Blocks in memory: limit, order of eviction, unread bytes."""

from __future__ import annotations

from wrkfs.data.cache import BlockCache
from wrkfs.types import SliceId


def block(number: int) -> tuple[SliceId, int]:
    return SliceId(number), 0


def data(size: int) -> memoryview:
    return memoryview(bytes(size))


def test_the_oldest_goes_first() -> None:
    cache = BlockCache(300)
    for number in range(4):
        cache.add(block(number), 0, data(100))
        cache.find(block(0), 0, 1)
    assert cache.find(block(0), 20, 30) is not None
    assert cache.find(block(1), 0, 100) is None
    assert cache.find(block(3), 0, 101) is None
    assert cache.size == 300


def test_a_piece_replaces_those_that_it_covers() -> None:
    cache = BlockCache(1000)
    cache.add(block(1), 100, data(100))
    cache.add(block(1), 100, data(100))
    cache.add(block(1), 300, data(100))
    assert cache.size == 200
    assert cache.find(block(1), 150, 350) is None
    cache.add(block(1), 0, data(400))
    assert cache.size == 400
    assert cache.find(block(1), 150, 350) is not None


def test_what_was_fetched_ahead_counts_until_its_end_is_read() -> None:
    cache = BlockCache(1000)
    cache.add(block(1), 0, data(400), until=400)
    cache.add(block(2), 0, data(400), until=400)
    assert cache.contains(block(1), 0, 400)
    assert cache.unread == 800
    cache.find(block(1), 0, 399)
    assert cache.unread == 800
    for _ in range(2):
        cache.find(block(1), 300, 400)
        assert cache.unread == 400
    cache.find(block(2), 0, 400)
    cache.add(block(3), 0, data(400))
    assert cache.contains(block(1), 0, 400), "it was read again"
    assert not cache.contains(block(2), 0, 400), "its one reader has gone on"
    cache.add(block(4), 0, data(1000))
    assert (cache.unread, cache.size) == (0, 1000)


def test_more_than_the_bound_is_not_kept() -> None:
    cache = BlockCache(100)
    cache.add(block(1), 0, data(101), until=101)
    assert (cache.size, cache.unread) == (0, 0)


def test_what_nobody_reads_is_given_up_when_others_read_much() -> None:
    cache = BlockCache(1000)
    cache.add(block(1), 0, data(400), until=400)
    cache.add(block(2), 0, data(400), until=400)
    cache.note_read(1500)
    cache.find(block(2), 0, 10)
    cache.note_read(500)
    assert cache.unread == 800
    cache.note_read(1)
    assert cache.unread == 400, "the second one was touched later"
    cache.add(block(3), 0, data(400))
    assert not cache.contains(block(1), 0, 400)
    assert cache.contains(block(2), 0, 400)
    cache.note_read(2000)
    assert cache.unread == 0
    cache.note_read(10_000)
