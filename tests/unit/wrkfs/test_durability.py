"""fsync and close make all earlier changes durable, and none twice."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_store import MemoryMeta
from tests.unit.wrkfs.drive import ME, create
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO, RenameFlags, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from wrkfs.types import Attr, Caller, Commit, FileMap, Ino

    Change = Callable[[Filesystem, Ino], Awaitable[object]]


class Counting(MemoryMeta):
    """A memory store that counts the calls that make its answers durable."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = 0
        self.hold: asyncio.Event | None = None
        self.held = asyncio.Event()
        self.made: list[bool] = []
        """For each created file, whether it was created durably."""

    async def create(
        self,
        parent: Ino,
        name: bytes,
        mode: int,
        caller: Caller,
        *,
        exclusive: bool,
        durable: bool = False,
    ) -> tuple[FileMap, bool]:
        if self.hold is not None:
            self.held.set()
            await self.hold.wait()
        self.made.append(durable)
        return await super().create(
            parent, name, mode, caller, exclusive=exclusive, durable=durable
        )

    async def sync(self) -> None:
        await super().sync()
        self.durable += 1

    async def commit(self, commit: Commit) -> Attr:
        attr = await super().commit(commit)
        self.durable += commit.durable
        return attr

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        if self.hold is not None:
            self.held.set()
            await self.hold.wait()
        return await super().setattr(ino, changes)


@pytest.fixture
def meta() -> Counting:
    """The store under `fs`."""
    return Counting()


@pytest_asyncio.fixture
async def fs(meta: Counting) -> AsyncIterator[Filesystem]:
    """Return a Filesystem without changes that are not durable."""
    await meta.start()
    made = Filesystem(meta, MemoryBlocks())
    await made.mkdir(ROOT_INO, b"directory", 0o755, ME)
    await made.symlink(ROOT_INO, b"symlink", b"target", ME)
    await made.sync_names()
    meta.durable = 0
    try:
        yield made
    finally:
        await made.close()


CHANGES: dict[str, Change] = {
    "rename": lambda fs, _: fs.rename(ROOT_INO, b"file", ROOT_INO, b"new"),
    "exchange": lambda fs, _: fs.rename(
        ROOT_INO, b"file", ROOT_INO, b"symlink", RenameFlags.EXCHANGE
    ),
    "link": lambda fs, ino: fs.link(ino, ROOT_INO, b"new"),
    "unlink": lambda fs, _: fs.unlink(ROOT_INO, b"symlink"),
    "rmdir": lambda fs, _: fs.rmdir(ROOT_INO, b"directory"),
    "remove_tree": lambda fs, _: fs.remove_tree(ROOT_INO, b"directory"),
    "mkdir": lambda fs, _: fs.mkdir(ROOT_INO, b"new", 0o755, ME),
    "mknod": lambda fs, _: fs.mknod(ROOT_INO, b"new", 0o100644, 0, ME),
    "symlink": lambda fs, _: fs.symlink(ROOT_INO, b"new", b"t", ME),
    "setxattr": lambda fs, ino: fs.setxattr(ino, b"user.a", b"1"),
    "removexattr": lambda fs, ino: fs.removexattr(ino, b"user.b"),
    "chmod": lambda fs, ino: fs.setattr(ino, SetAttr(mode=0o600)),
    "truncate": lambda fs, ino: fs.setattr(ino, SetAttr(size=9)),
    "utimens": lambda fs, ino: fs.setattr(ino, SetAttr(mtime_ns=1)),
    "chmod of another": lambda fs, _: fs.setattr(ROOT_INO, SetAttr(mode=0o700)),
    "create": lambda fs, _: fs.create(ROOT_INO, b"new", 0o600, os.O_RDONLY, ME),
    "open and truncate": lambda fs, ino: fs.open(ino, os.O_WRONLY | os.O_TRUNC),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", ["fsync", "flush", "close", "fsyncdir", "syncfs"])
async def test_a_change_is_made_durable_once(
    fs: Filesystem, meta: Counting, change: Change, way: str
) -> None:
    handle = await create(fs)
    await fs.setxattr(handle.ino, b"user.b", b"2")
    await handle.write(0, b"data")
    await handle.fsync()
    assert meta.durable == 1, "the commit of the bytes carries the names"
    await handle.fsync()
    assert meta.durable == 2, "others may have written meanwhile"
    await handle.flush()
    assert meta.durable == 2, "nothing changed here since"
    await change(fs, handle.ino)
    if way == "fsyncdir":
        await fs.sync_names()
    elif way == "syncfs":
        await fs.sync()
    elif way == "fsync":
        await handle.fsync()
    elif way == "flush":
        await handle.flush()
    else:
        await handle.close()
    assert meta.durable == 3
    await handle.close()
    assert meta.durable == 3
    await fs.sync_names()
    assert meta.durable == 4, "a name may be another session's work"


async def test_the_close_of_a_reader_covers_changes_and_costs_nothing_without(
    fs: Filesystem, meta: Counting
) -> None:
    handle = await create(fs)
    await handle.close()
    before = meta.durable
    for _ in range(3):
        reader = await fs.open(handle.ino, os.O_RDONLY)
        await reader.read(0, 10)
        await reader.flush()
        await reader.close()
    assert meta.durable == before, "nothing waited to become durable"
    reader = await fs.open(handle.ino, os.O_RDONLY)
    await fs.rename(ROOT_INO, b"file", ROOT_INO, b"new")
    await reader.flush()
    assert meta.durable == before + 1
    await reader.close()
    assert meta.durable == before + 1, "once for all that was answered"


async def test_the_close_of_a_reader_leaves_the_bytes_of_writers_alone(
    fs: Filesystem, meta: Counting
) -> None:
    writer = await create(fs)
    await writer.fsync()
    await writer.write(0, b"data")
    reader = await fs.open(writer.ino, os.O_RDONLY)
    before = meta.durable
    await reader.close()
    assert meta.durable == before
    assert writer.file.writer.dirty
    await writer.close()


async def test_a_snapshot_pays_nothing_for_the_changes_of_others(
    fs: Filesystem, meta: Counting
) -> None:
    handle = await create(fs)
    await handle.close()
    shown = await fs.open_snapshot(handle.ino)
    await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    before = meta.durable
    await shown.close()
    assert meta.durable == before


async def test_the_release_of_a_flushed_handle_pays_nothing_for_the_changes_of_others(
    fs: Filesystem, meta: Counting
) -> None:
    handle = await create(fs)
    await handle.write(0, b"data")
    await handle.flush()
    await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    await handle.close(flushed=True)
    assert meta.durable == 1


async def test_the_release_of_a_flushed_handle_commits_what_came_after(
    fs: Filesystem, meta: Counting
) -> None:
    handle = await create(fs)
    await handle.flush()
    await handle.write(0, b"page of a mapping")
    await handle.close(flushed=True)
    assert meta.durable == 2


async def test_a_published_file_needs_no_further_sync(fs: Filesystem, meta: Counting) -> None:
    handle = await fs.create_unlinked(0o600, ME)
    await handle.write(0, b"body")
    await fs.publish(handle.ino, ROOT_INO, b"new")
    await handle.close()
    assert meta.durable == 1, "of the bytes; publish itself is durable, with all before it"


async def test_a_durable_commit_does_not_cover_a_change_that_is_answered_later(
    fs: Filesystem, meta: Counting
) -> None:
    file, other = await create(fs, b"file"), await create(fs, b"other")
    await fs.sync_names()
    meta.hold = asyncio.Event()
    change = asyncio.create_task(fs.setattr(file.ino, SetAttr(size=100)))
    await meta.held.wait()
    await other.write(0, b"x")
    await other.fsync()
    meta.hold.set()
    await change
    before = meta.durable
    await file.fsync()
    assert meta.durable == before + 1


async def closed(fs: Filesystem, name: bytes, data: bytes = b"") -> None:
    """A new file, closed."""
    handle = await create(fs, name)
    if data:
        await handle.write(0, data)
    await handle.close()


async def test_after_a_file_that_was_closed_empty_the_next_is_made_durably(
    fs: Filesystem, meta: Counting
) -> None:
    await closed(fs, b"a")
    assert (meta.made, meta.durable) == ([False], 1)
    await closed(fs, b"b")
    await closed(fs, b"c")
    assert (meta.made, meta.durable) == ([False, True, True], 1)
    # This file has bytes, so the next one is expected to have some.
    await closed(fs, b"d", b"bytes")
    await closed(fs, b"e", b"bytes")
    assert (meta.made, meta.durable) == ([False, True, True, True, False], 3)
    await closed(fs, b"f")
    await closed(fs, b"g")
    assert (meta.made[5:], meta.durable) == ([False, True], 4)


async def test_bytes_that_came_before_the_close_are_no_empty_file(
    fs: Filesystem, meta: Counting
) -> None:
    handle = await create(fs)
    await handle.write(0, b"bytes")
    await handle.file.writer.commit(durable=False)
    await handle.close()
    await closed(fs, b"next")
    assert meta.made == [False, False]


async def test_what_comes_after_a_durable_making_is_not_covered_by_it(
    fs: Filesystem, meta: Counting
) -> None:
    await closed(fs, b"a")
    handle = await create(fs, b"b")
    await fs.setattr(handle.ino, SetAttr(mode=0o600))
    await handle.close()
    assert (meta.made, meta.durable) == ([False, True], 2)


async def test_what_is_answered_during_a_durable_making_is_not_covered_by_it(
    fs: Filesystem, meta: Counting
) -> None:
    await closed(fs, b"a")
    meta.hold = asyncio.Event()
    making = asyncio.create_task(create(fs, b"b"))
    await meta.held.wait()
    await fs.mkdir(ROOT_INO, b"meanwhile", 0o755, ME)
    meta.hold.set()
    await (await making).close()
    assert (meta.made, meta.durable) == ([False, True], 2)


async def test_a_file_that_was_there_tells_nothing_of_the_next(
    fs: Filesystem, meta: Counting
) -> None:
    await closed(fs, b"a", b"bytes")
    handle = await create(fs, b"a")
    await handle.close()
    await closed(fs, b"b")
    assert meta.made == [False, False, False]
