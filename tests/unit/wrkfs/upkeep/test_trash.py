"""Restores from the trash by path and by number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.unit.wrkfs.drive import Drive
from wrkfs import errors
from wrkfs.paths import resolve
from wrkfs.types import ROOT_INO, Caller, Ino
from wrkfs.upkeep import trash

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.fs import Filesystem

ME = Caller(7, 8)


@pytest.fixture
async def fs() -> AsyncIterator[Filesystem]:
    """Return a Filesystem of a volume with trash."""
    drive = Drive()
    drive.volume.trash_seconds = 3600
    fs = await drive.mount()
    yield fs
    await fs.close()


async def write(fs: Filesystem, path: bytes, data: bytes) -> Ino:
    """Create a file with its directories."""
    *above, name = path.split(b"/")
    at = ROOT_INO
    for step in above:
        try:
            at = (await fs.lookup(at, step)).ino
        except errors.NotFound:
            at = (await fs.mkdir(at, step, 0o750, ME)).ino
    _, handle = await fs.create(at, name, 0o640, os.O_RDWR | os.O_TRUNC, ME)
    await handle.write(0, data)
    await handle.close()
    return handle.ino


async def read(fs: Filesystem, path: bytes) -> bytes:
    attr = (await resolve(fs, path, follow=False)).attr
    if attr is None:
        raise errors.NotFound
    handle = await fs.open(attr.ino, os.O_RDONLY)
    try:
        return await handle.read(0, 1 << 20)
    finally:
        await handle.close()


async def remove(fs: Filesystem, path: bytes) -> None:
    found = await resolve(fs, path, follow=False)
    await fs.remove_tree(found.parent, found.name)


async def listed(fs: Filesystem) -> list[bytes | None]:
    return [removed.path async for removed in trash.entries(fs)]


async def test_entries_have_their_paths(fs: Filesystem) -> None:
    await write(fs, b"a/b/f", b"1")
    await write(fs, b"g", b"2")
    await remove(fs, b"a/b/f")
    await remove(fs, b"g")
    assert await listed(fs) == [b"a/b/f", b"g"]
    await remove(fs, b"a")
    assert set(await listed(fs)) == {b"a/b/f", b"g", b"a", b"a/b"}


async def test_a_path_brings_back_its_newest_version(fs: Filesystem) -> None:
    for data in (b"1", b"2"):
        await write(fs, b"d/f", data)
        await remove(fs, b"d/f")
    done = await trash.restore(fs, b"/d/f")
    assert (done.path, done.files) == (b"d/f", 1)
    assert await read(fs, b"d/f") == b"2"
    with pytest.raises(errors.Exists):
        await trash.restore(fs, b"d/f")
    assert await listed(fs) == [b"d/f"]


async def test_a_number_brings_back_an_older_one_elsewhere(fs: Filesystem) -> None:
    ino = await write(fs, b"f", b"1")
    await remove(fs, b"f")
    await write(fs, b"f", b"2")
    await trash.restore(fs, ino, to=b"/old")
    assert await read(fs, b"old") == b"1"
    assert await read(fs, b"f") == b"2"


async def test_missing_directories_are_made_again(fs: Filesystem) -> None:
    await write(fs, b"a/b/f", b"1")
    await write(fs, b"a/b/g", b"2")
    before = (await resolve(fs, b"a/b", follow=False)).attr
    await remove(fs, b"a")
    done = await trash.restore(fs, b"a/b/f")
    assert (done.path, done.files) == (b"a/b/f", 1)
    assert await read(fs, b"a/b/f") == b"1"
    after = (await resolve(fs, b"a/b", follow=False)).attr
    assert before is not None
    assert after is not None
    assert (after.mode, after.uid, after.gid) == (before.mode, 7, 8)
    assert await listed(fs) == [b"a/b/g"]


async def test_a_new_directory_of_the_same_path_is_used(fs: Filesystem) -> None:
    await write(fs, b"a/f", b"1")
    await remove(fs, b"a")
    await write(fs, b"a/g", b"2")
    await trash.restore(fs, b"a/f")
    assert await read(fs, b"a/f") == b"1"
    assert await read(fs, b"a/g") == b"2"


async def test_a_file_in_the_way_of_a_directory_is_kept(fs: Filesystem) -> None:
    await write(fs, b"a/f", b"1")
    await remove(fs, b"a")
    await write(fs, b"a", b"2")
    with pytest.raises(errors.NotDirectory, match="is not a directory"):
        await trash.restore(fs, b"a/f")
    with pytest.raises(errors.Exists):
        await trash.restore(fs, b"a")
    assert await read(fs, b"a") == b"2"


async def test_a_tree_comes_back_whole(fs: Filesystem) -> None:
    for number in range(20):
        await write(fs, b"top/%d/%d" % (number % 3, number), b"%d" % number)
    await fs.symlink((await fs.lookup(ROOT_INO, b"top")).ino, b"link", b"0/0", ME)
    node = await fs.lookup(ROOT_INO, b"top")
    await remove(fs, b"top")
    done = await trash.restore(fs, b"top")
    assert (done.files, done.directories, done.missing) == (21, 4, {})
    for number in range(20):
        assert await read(fs, b"top/%d/%d" % (number % 3, number)) == b"%d" % number
    assert (await fs.lookup(ROOT_INO, b"top")).ino == node.ino


async def test_a_restored_tree_leaves_alone_what_is_there(fs: Filesystem) -> None:
    await write(fs, b"d/f", b"old")
    await write(fs, b"d/g", b"old")
    await remove(fs, b"d")
    await write(fs, b"d/f", b"new")
    done = await trash.restore(fs, b"d")
    assert (done.files, done.directories, list(done.missing)) == (1, 0, [b"d/f"])
    assert await read(fs, b"d/f") == b"new"
    assert await read(fs, b"d/g") == b"old"
    assert b"d/f" in await listed(fs)


async def test_what_nobody_removed_is_not_found(fs: Filesystem) -> None:
    for what in (b"nothing", Ino(12345)):
        with pytest.raises(errors.NotFound, match="trash"):
            await trash.restore(fs, what)


async def test_emptying_frees_everything(fs: Filesystem) -> None:
    await write(fs, b"a/f", b"x" * 100_000)
    await remove(fs, b"a")
    assert await trash.empty(fs) == 2
    assert await listed(fs) == []
    assert await trash.empty(fs) == 0


async def test_tidying_keeps_what_is_young_and_few(fs: Filesystem) -> None:
    for number in range(trash.VERSIONS + 3):
        await write(fs, b"f", b"%d" % number)
        await remove(fs, b"f")
    assert await trash.tidy(fs) == 3
    assert await trash.tidy(fs) == 0
    assert len(await listed(fs)) == trash.VERSIONS


async def test_long_work_tells_how_far_it_is(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "PAGE", 2)
    for number in range(5):
        await write(fs, b"d/%d" % number, b"x")
    await remove(fs, b"d")
    told: list[int] = []
    await trash.restore(fs, b"d", progress=told.append)
    assert told == list(range(1, 7))
    await remove(fs, b"d")
    told.clear()
    assert await trash.empty(fs, progress=told.append) == 6
    assert told == [2, 4, 6]
    assert await trash.tidy(fs, progress=told.append) == 0


async def newest(fs: Filesystem, limit: int, below: bytes = b"") -> list[bytes | None]:
    """Read all pages of the trash, the newest entry first; return the paths."""
    paths: list[bytes | None] = []
    position = None
    while True:
        page = await trash.newest(fs, position, limit, below=below)
        assert len(page.entries) <= limit
        paths += [removed.path for removed in page.entries]
        position = page.next
        if position is None:
            return paths


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_pages_list_the_newest_entry_first(fs: Filesystem, limit: int) -> None:
    for path in (b"a/f", b"a/b/g", b"ab"):
        await write(fs, path, b"1")
        await remove(fs, path)
    await remove(fs, b"a")
    assert await newest(fs, limit) == (await listed(fs))[::-1]


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_pages_below_a_path_have_no_other_entries(fs: Filesystem, limit: int) -> None:
    for path in (b"a/f", b"a/b/g", b"ab", b"c"):
        await write(fs, path, b"1")
        await remove(fs, path)
    assert await newest(fs, limit, b"a") == [b"a/b/g", b"a/f"]
    assert await newest(fs, limit, b"a/b/g") == [b"a/b/g"]
    assert await newest(fs, limit, b"missing") == []


async def test_a_page_examines_a_bounded_number_of_entries(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "SCAN", 3)
    for number in range(7):
        await write(fs, b"%d" % number, b"1")
        await remove(fs, b"%d" % number)
    first = await trash.newest(fs, None, 1, below=b"0")
    assert (first.entries, first.next is None) == ([], False)
    assert await newest(fs, 1, b"0") == [b"0"]
