"""The disk cache: hits, limit, restarts, and disks that fail or contain changed files."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.harness.wait import until
from wrkfs.config import StoreConfig, VolumeConfig
from wrkfs.data import diskcache
from wrkfs.data.diskcache import OVERHEAD, DiskCache, cache_directory
from wrkfs.types import SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.plugins.strict_logs import AssertLogs

KIB = 1024
DATA = os.urandom(256 * KIB)


class Open(Protocol):
    """Opens a cache in the one directory of the test."""

    async def __call__(self, limit: int = ..., *, reserve: float = ...) -> DiskCache:
        """Return a started cache that has indexed its files."""
        ...


def block(number: int) -> tuple[SliceId, int]:
    return SliceId(number), 0


def files(directory: Path) -> list[Path]:
    """Return the files of the cached pieces."""
    return sorted(path for path in directory.glob("??/*"))


@pytest.fixture
async def open_cache(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens caches in one directory."""
    made: list[DiskCache] = []

    async def make(limit: int = 1 << 30, *, reserve: float = 0.0) -> DiskCache:
        cache = DiskCache(tmp_path / "cache", limit, reserve=reserve)
        made.append(cache)
        await cache.start()
        await until(lambda: cache.usage.state != "starting")
        return cache

    yield make
    for cache in made:
        await cache.close()


async def got(cache: DiskCache, key: tuple[SliceId, int], first: int, last: int) -> bytes | None:
    """Return the bytes from the cache."""
    data = await cache.get(key, first, last)
    return None if data is None else bytes(data)


async def put(cache: DiskCache, number: int, data: bytes = DATA, first: int = 0) -> None:
    """Write a piece and wait until it can be read."""
    cache.put(block(number), first, memoryview(data))
    await until(lambda: cache._writer is None)


async def test_what_was_put_is_got_also_after_a_restart(open_cache: Open, tmp_path: Path) -> None:
    first = await open_cache()
    await put(first, 7)
    await put(first, 8, DATA[: 128 * KIB], first=128 * KIB)
    assert await got(first, block(7), 0, len(DATA)) == DATA
    await first.close()
    cache = await open_cache()
    assert cache.usage.state == "ready"
    assert cache.usage.size == len(DATA) + 128 * KIB + 2 * OVERHEAD
    assert await got(cache, block(7), 128 * KIB, len(DATA)) == DATA[128 * KIB :]
    assert await got(cache, block(8), 128 * KIB, 256 * KIB) == DATA[: 128 * KIB]
    assert await cache.get(block(8), 0, 128 * KIB) is None
    assert await cache.get(block(9), 0, 1) is None
    assert (cache.usage.hits, cache.usage.misses) == (2, 2)
    modes = {(tmp_path / "cache").stat().st_mode, files(tmp_path / "cache")[0].stat().st_mode}
    assert not any(mode & 0o077 for mode in modes)


async def test_the_bound_holds_and_the_oldest_goes_also_after_a_restart(
    open_cache: Open, tmp_path: Path
) -> None:
    limit = 4 * (len(DATA) + OVERHEAD)
    cache = await open_cache(limit)
    for number in range(10):
        await put(cache, number)
        await cache.get(block(0), 0, 1)
        assert sum(path.stat().st_size for path in files(tmp_path / "cache")) <= limit
    assert await got(cache, block(0), 0, len(DATA)) == DATA
    assert await cache.get(block(6), 0, len(DATA)) is None
    await cache.close()
    smaller = await open_cache(limit // 2)
    assert await got(smaller, block(0), 0, len(DATA)) == DATA, "it was read last"
    await until(lambda: len(files(tmp_path / "cache")) == 2)
    assert smaller.usage.size <= limit // 2


async def test_a_whole_block_replaces_its_pieces(open_cache: Open, tmp_path: Path) -> None:
    cache = await open_cache()
    await put(cache, 1, DATA[: 128 * KIB])
    await put(cache, 1, DATA[128 * KIB :], first=128 * KIB)
    await put(cache, 1, DATA[128 * KIB :], first=128 * KIB)
    assert cache.usage.size == len(DATA) + 2 * OVERHEAD
    await put(cache, 1)
    assert cache.usage.size == len(DATA) + OVERHEAD
    assert len(files(tmp_path / "cache")) == 1
    assert await got(cache, block(1), 0, len(DATA)) == DATA


async def test_one_process_at_a_time(open_cache: Open, assert_logs: AssertLogs) -> None:
    first = await open_cache()
    with assert_logs("another process uses it"):
        second = await open_cache()
    await put(first, 1)
    second.put(block(2), 0, memoryview(DATA))
    assert await second.get(block(1), 0, 1) is None
    assert "another process" in second.usage.state
    await first.close()
    third = await open_cache()
    assert await third.get(block(1), 0, 1) is not None


@pytest.mark.parametrize("how", ["wide", "foreign", "file"])
async def test_a_directory_that_others_can_touch_is_not_used(
    open_cache: Open, tmp_path: Path, how: str, assert_logs: AssertLogs
) -> None:
    directory = tmp_path / "cache"
    if how == "file":
        directory.write_bytes(b"")
    else:
        directory.mkdir(mode=0o700)
    if how == "wide":
        directory.chmod(0o755)
    if how == "foreign":
        os.chown(directory, 65534, 65534)
    with assert_logs("no block cache in"):
        cache = await open_cache()
    cache.put(block(1), 0, memoryview(DATA))
    assert await cache.get(block(1), 0, 1) is None


async def test_a_deleted_directory_is_made_again(open_cache: Open, tmp_path: Path) -> None:
    cache = await open_cache()
    await put(cache, 1)
    shutil.rmtree(tmp_path / "cache")
    assert await cache.get(block(1), 0, 1) is None
    await put(cache, 1)
    assert await got(cache, block(1), 0, len(DATA)) == DATA


async def test_a_full_disk_is_left_alone_until_later(
    open_cache: Open, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = await open_cache()
    for number in range(16):
        await put(cache, number)
    cache._files._reserve = 1.0
    with assert_logs("% of the disk is free"):
        await put(cache, 100)
    assert await cache.get(block(100), 0, 1) is None
    assert "is free" in cache.usage.state
    assert cache.usage.size == 14 * (len(DATA) + OVERHEAD), "it gives back an eighth"
    assert await got(cache, block(15), 0, len(DATA)) == DATA
    cache._files._reserve = 0.0
    await put(cache, 101)
    assert await cache.get(block(101), 0, 1) is None, "not before the pause is over"
    monkeypatch.setattr(cache, "_resume_writes", 0.0)
    await put(cache, 101)
    assert await got(cache, block(101), 0, len(DATA)) == DATA
    assert cache.usage.state == "ready"


@pytest.mark.parametrize("how", ["short", "link", "fifo", "directory", "gone"])
async def test_whatever_stands_in_a_files_place_is_a_miss(
    open_cache: Open, tmp_path: Path, how: str
) -> None:
    cache = await open_cache()
    await put(cache, 1)
    await put(cache, 2)
    (path,) = (path for path in files(tmp_path / "cache") if path.name.startswith("1-"))
    path.unlink()
    if how == "short":
        path.write_bytes(DATA[:1000])
    elif how == "link":
        (tmp_path / "secret").write_bytes(DATA)
        path.symlink_to(tmp_path / "secret")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
    assert await cache.get(block(1), 0, len(DATA)) is None
    assert await got(cache, block(2), 0, len(DATA)) == DATA
    assert cache.usage.size == len(DATA) + OVERHEAD


async def test_torn_and_strange_files_are_not_taken_for_pieces(
    open_cache: Open, tmp_path: Path
) -> None:
    cache = await open_cache()
    await put(cache, 1)
    await cache.close()
    folder = tmp_path / "cache" / "01"
    (folder / "257-0-0-1000").write_bytes(bytes(999))
    (folder / "257-0-0-").write_bytes(b"")
    (folder / "x").write_bytes(b"")
    os.mkfifo(folder / "513-0-0-0")
    (tmp_path / "cache" / "02").write_bytes(b"")
    again = await open_cache()
    assert again.usage.size == len(DATA) + OVERHEAD
    assert not (folder / "257-0-0-1000").exists()


async def test_a_disk_that_is_behind_is_not_waited_for(open_cache: Open) -> None:
    cache = await open_cache()
    many = memoryview(bytes(diskcache.QUEUE // 4))
    for number in range(10):
        cache.put(block(number), 0, many)
    await until(lambda: cache._writer is None)
    assert cache.usage.size == 4 * (len(many) + OVERHEAD)


async def test_a_disk_that_does_not_answer_is_not_waited_for(
    open_cache: Open, assert_logs: AssertLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = await open_cache()
    await put(cache, 1)
    monkeypatch.setattr(diskcache, "PATIENCE", 0.0)
    with assert_logs("does not answer"):
        assert await cache.get(block(1), 0, len(DATA)) is None
    monkeypatch.setattr(diskcache, "PATIENCE", 60.0)
    assert await cache.get(block(1), 0, len(DATA)) is None, "not before the pause is over"
    monkeypatch.setattr(cache, "_resume_reads", 0.0)
    assert await got(cache, block(1), 0, len(DATA)) == DATA


def test_volumes_have_directories_whose_names_tell_nothing(tmp_path: Path) -> None:
    store = StoreConfig("http://h", "bucket", "../../etc", "r", "a", "s")
    one, other = (VolumeConfig(name, "schema", "dsn", store) for name in ("../one", "other"))
    found = {cache_directory(tmp_path, config) for config in (one, other)}
    assert len(found) == 2
    assert all(path.parent == tmp_path and len(path.name) == 32 for path in found)
