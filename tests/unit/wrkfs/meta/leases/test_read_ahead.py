"""What a reader's pattern reads ahead, and what it does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from tests.unit.wrkfs.meta.lessor import Lessor
from wrkfs.errors import Corrupt, Unavailable
from wrkfs.layout import KIB
from wrkfs.meta.leases import read_ahead
from wrkfs.meta.leases.store import LeasedMeta
from wrkfs.types import ROOT_INO, Caller, Commit, Extent, Ino, SliceId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.doubles.meta_volume import MemoryVolume
    from wrkfs.meta.interface.leases import LeaseStore
    from wrkfs.meta.interface.trees import TreeAnswer, TreeRequest

ME = Caller(0, 0)


CALLS = {
    *("find", "stat", "entries", "readdir", "lookup", "getattr", "parent"),
    *("open", "file_map", "take_lease", "read_tree"),
}
"""Calls that a reader waits for."""


class Tree:
    """A tree that another session made, and a counting store with a cache."""

    def __init__(self) -> None:
        self.maker = Lessor()
        self.lessor = Counting(self.maker.volume)
        self.meta = LeasedMeta(cast("LeaseStore", self.lessor))
        self._slices = 0

    async def directory(self, parent: Ino, name: bytes, files: int, size: int = 10) -> Ino:
        """Create a directory with files of `size` bytes."""
        ino = (await self.maker.mkdir(parent, name, 0o755, ME)).ino
        for number in range(files):
            made, _ = await self.maker.create(ino, b"f%d" % number, 0o644, ME, exclusive=True)
            if size:
                self._slices += 1
                extent = Extent(0, SliceId(self._slices), size, b"", bytes(size))
                await self.maker.commit(Commit(made.attr.ino, (extent,), durable=False))
            await self.maker.release(made.attr.ino)
        return ino

    async def deep(self, parent: Ino, widths: list[int], files: int) -> list[Ino]:
        """Create directories of directories; `widths` is the number of them at each depth."""
        made = []
        for number in range(widths[0] if widths else 0):
            ino = await self.directory(parent, b"d%d" % number, files)
            made += [ino, *await self.deep(ino, widths[1:], files)]
        return made

    async def find(self, directory: Ino, opens: bool = False) -> int:
        """Walk a tree as find(1), or as grep(1) if it `opens` files; count the entries."""
        count = 0
        for entry in await self.meta.readdir(directory, 0, 410):
            count += 1
            if entry.attr.is_dir:
                await self.meta.getattr(entry.attr.ino)
                count += await self.find(entry.attr.ino, opens)
            elif opens:
                file_map = await self.meta.open(entry.attr.ino)
                assert sum(ref.length for ref in file_map.refs) == entry.attr.size
                await self.meta.release(entry.attr.ino)
        return count


class Counting(Lessor):
    """Records the calls."""

    def __init__(self, volume: MemoryVolume) -> None:
        super().__init__(volume)
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in CALLS:
            self.calls.append(name)
        return super().__getattribute__(name)

    def taken(self) -> list[str]:
        """Return the calls since the last call of this method."""
        calls, self.calls = self.calls, []
        return calls


@pytest_asyncio.fixture
async def tree() -> AsyncIterator[Tree]:
    """An empty tree."""
    made = Tree()
    await made.maker.start()
    await made.meta.start()
    made.lessor.taken()
    yield made
    await made.meta.close()
    await made.maker.close()


async def test_a_single_look_reads_nothing_ahead(tree: Tree) -> None:
    home = await tree.directory(ROOT_INO, b"home", 3)
    await tree.directory(home, b"sub", 3)
    await tree.meta.getattr(home)
    await tree.meta.lookup(home, b"f0")
    assert tree.lessor.trees == []
    await tree.meta.readdir(home, 0, 100)
    (request,) = tree.lessor.trees
    assert (request.directories, request.take, request.leases) == ((home,), (), 0)


async def test_the_second_look_up_reads_the_directory(tree: Tree) -> None:
    home = await tree.directory(ROOT_INO, b"home", 20)
    await tree.meta.lookup(home, b"f0")
    await tree.meta.lookup(home, b"f1")
    tree.lessor.taken()
    for number in range(20):
        attr = await tree.meta.lookup(home, b"f%d" % number)
        await tree.meta.open(attr.ino)
        await tree.meta.release(attr.ino)
    assert tree.lessor.taken() == []
    assert len(tree.lessor.trees) == 1


@pytest.mark.parametrize("opens", [False, True])
async def test_a_walk_costs_few_calls(tree: Tree, opens: bool) -> None:
    made = await tree.deep(ROOT_INO, [10, 9, 2], 5)
    assert len(made) == 280
    tree.lessor.taken()
    assert await tree.find(ROOT_INO, opens) == len(made) + 5 * len(made)
    calls = tree.lessor.taken()
    assert len(calls) <= 40, calls
    # The second walk finds everything in the cache.
    assert await tree.find(ROOT_INO, opens) == len(made) + 5 * len(made)
    assert tree.lessor.taken() == []


async def test_files_that_are_not_opened_are_not_read(tree: Tree) -> None:
    homes = [await tree.directory(ROOT_INO, b"d%d" % number, 20, 8 * KIB) for number in range(20)]
    await tree.find(ROOT_INO)
    contents = sum(tree.meta.ahead._contents.values())
    assert contents <= read_ahead.FIRST_CONTENT + read_ahead.CONTENT // 4
    assert tree.lessor.trees[-1].content == 0
    # Opens pay for contents again, of the next directories, too.
    tree.lessor.taken()
    for home in homes:
        for entry in await tree.meta.readdir(home, 0, 100):
            await tree.meta.open(entry.attr.ino)
            await tree.meta.release(entry.attr.ino)
    calls = tree.lessor.taken()
    assert len(calls) < 40, calls
    assert {request.maps_only for request in tree.lessor.trees[-3:]} == {True}


async def test_directories_that_are_not_visited_exhaust_the_credit(tree: Tree) -> None:
    for number in range(300):
        home = await tree.directory(ROOT_INO, b"d%d" % number, 1)
        await tree.directory(home, b"sub", 1)
    entries = await tree.meta.readdir(ROOT_INO, 0, 410)
    for entry in entries[::40]:
        await tree.meta.readdir(entry.attr.ino, 0, 100)
    ahead = sum(len(request.directories) - 1 for request in tree.lessor.trees)
    assert ahead <= read_ahead.FIRST_DIRECTORIES + len(entries[::40])


async def test_recalls_end_reading_ahead(tree: Tree) -> None:
    homes = [await tree.directory(ROOT_INO, b"d%d" % number, 1) for number in range(100)]
    await tree.meta.readdir(ROOT_INO, 0, 410)
    await tree.meta.readdir(homes[0], 0, 100)
    await tree.meta.readdir(homes[1], 0, 100)
    leased = sorted(set(homes[2:]) & tree.lessor.leases)
    assert leased
    tree.lessor.recall(*leased)
    await asyncio.sleep(0)
    assert not set(leased) & set(tree.meta.table.directories)
    tree.lessor.trees.clear()
    await tree.meta.readdir(homes[50], 0, 100)
    ((directory, *ahead),) = (request.directories for request in tree.lessor.trees)
    assert directory == homes[50]
    assert len(ahead) <= 1


async def test_an_own_change_during_the_call_keeps_its_answer_out(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [await tree.directory(ROOT_INO, b"d%d" % number, 1) for number in range(3)]
    await tree.meta.readdir(ROOT_INO, 0, 410)
    read = tree.lessor.read_tree

    async def crossed(request: TreeRequest) -> TreeAnswer:
        answer = await read(request)
        await tree.meta.mkdir(homes[0], b"new", 0o755, ME)
        return answer

    monkeypatch.setattr(tree.lessor, "read_tree", crossed)
    entries = await tree.meta.readdir(homes[0], 0, 100)
    assert [entry.name for entry in entries] == [b"f0"]
    assert not tree.meta.table.directories[homes[0]].complete
    monkeypatch.undo()
    entries = await tree.meta.readdir(homes[0], 0, 100)
    assert [entry.name for entry in entries] == [b"f0", b"new"]


async def test_a_recall_before_the_answer_ends_the_new_leases(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [await tree.directory(ROOT_INO, b"d%d" % number, 1) for number in range(3)]
    await tree.meta.readdir(ROOT_INO, 0, 410)
    read = tree.lessor.read_tree

    async def recalled(request: TreeRequest) -> TreeAnswer:
        answer = await read(request)
        tree.lessor.recall(homes[2])
        return answer

    monkeypatch.setattr(tree.lessor, "read_tree", recalled)
    await tree.meta.readdir(homes[0], 0, 100)
    await asyncio.sleep(0.01)
    assert homes[1] in tree.meta.table.directories
    assert homes[2] not in tree.meta.table.directories
    assert homes[2] not in tree.lessor.leases


async def test_a_bad_row_elsewhere_does_not_fail_the_visit(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = await tree.directory(ROOT_INO, b"home", 2)

    async def corrupt(_: TreeRequest) -> TreeAnswer:
        raise Corrupt("name of an entry")

    monkeypatch.setattr(tree.lessor, "read_tree", corrupt)
    assert len(await tree.meta.readdir(home, 0, 100)) == 2

    async def unavailable(_: TreeRequest) -> TreeAnswer:
        raise Unavailable

    monkeypatch.setattr(tree.lessor, "read_tree", unavailable)
    other = await tree.directory(ROOT_INO, b"other", 2)
    with pytest.raises(Unavailable):
        await tree.meta.readdir(other, 0, 100)


async def test_contents_have_a_bound(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "CONTENT_ROOM", 256 * KIB)
    for number in range(20):
        await tree.directory(ROOT_INO, b"d%d" % number, 10, 8 * KIB)
    for _ in range(2):
        await tree.find(ROOT_INO, opens=True)
        kept = sum(cached.map_weight for cached in tree.meta.table.directories.values())
        assert kept * 200 <= 2 * read_ahead.CONTENT_ROOM
        assert sum(tree.meta.ahead._contents.values()) == tree.meta.ahead._content_bytes
        assert tree.meta.ahead._content_bytes <= read_ahead.CONTENT_ROOM


async def test_two_readers_of_one_directory_make_one_call(tree: Tree) -> None:
    home = await tree.directory(ROOT_INO, b"home", 10)
    both = await asyncio.gather(*(tree.meta.readdir(home, 0, 100) for _ in range(4)))
    assert all(len(entries) == 10 for entries in both)
    assert tree.lessor.taken().count("read_tree") == 1
