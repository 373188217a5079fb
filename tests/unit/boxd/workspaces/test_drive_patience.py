"""Verbs over a drive whose stores give no answer: each ends by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.errors import Unavailable
from boxd.workspaces.drive import Condition, Directory, Drive, OpenFile
from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_store import MemoryMeta
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.types import Attr, Commit, Dentry, FileMap, Ino

ANYTHING = Condition()
SHORT = 0.2
"""Seconds; a verb of these tests waits for nothing else. What leads to it is not so impatient."""


class Silent(MemoryMeta):
    """A memory store that from some moment on answers no call of some kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.mute: set[str] = set()
        self.back = asyncio.Event()

    async def _answer(self, call: str) -> None:
        if call in self.mute:
            await self.back.wait()

    async def lookup(self, parent: Ino, name: bytes) -> Attr:
        await self._answer("lookup")
        return await super().lookup(parent, name)

    async def readdir(self, ino: Ino, after: int, limit: int) -> list[Dentry]:
        await self._answer("readdir")
        return await super().readdir(ino, after, limit)

    async def getattr(self, ino: Ino) -> Attr:
        await self._answer("getattr")
        return await super().getattr(ino)

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        await self._answer("open")
        return await super().open(ino, truncate=truncate)

    async def commit(self, commit: Commit) -> Attr:
        await self._answer("commit")
        return await super().commit(commit)

    async def release(self, ino: Ino) -> None:
        await self._answer("release")
        await super().release(ino)

    async def sync(self) -> None:
        await self._answer("sync")
        await super().sync()


@pytest.fixture
def meta() -> Silent:
    """The store under the drive."""
    return Silent()


@pytest_asyncio.fixture
async def drive(meta: Silent) -> AsyncIterator[Drive]:
    """An impatient drive with a file `old`, and a directory `dir`."""
    await meta.start()
    fs = Filesystem(meta, MemoryBlocks())
    patient = Drive(fs)
    await put(patient, b"old")
    await patient.make_directory(b"dir")
    yield Drive(fs, patience=SHORT)
    meta.back.set()
    await fs.close()


async def put(drive: Drive, path: bytes) -> None:
    left = [b"bytes"]

    async def body() -> bytes | None:
        return left.pop() if left else None

    await drive.put(path, body, ANYTHING)


async def get(drive: Drive, path: bytes) -> bytes:
    async with drive.at(path) as found:
        assert isinstance(found, OpenFile)
        return b"".join([piece async for piece in found.pieces(0, found.size)])


@pytest.mark.promise("D3")
@pytest.mark.parametrize("call", [{"lookup"}, {"commit", "release"}, {"release"}, {"getattr"}])
async def test_a_put_ends(meta: Silent, drive: Drive, call: set[str]) -> None:
    meta.mute = call
    with pytest.raises(Unavailable, match="did not finish within"):
        await put(drive, b"new")


@pytest.mark.promise("D3")
@pytest.mark.parametrize("call", [{"lookup"}, {"open"}, {"sync", "release"}])
async def test_other_verbs_end(meta: Silent, drive: Drive, call: set[str]) -> None:
    meta.mute = call
    if "sync" not in call:
        with pytest.raises(Unavailable, match="did not finish within"):
            await get(drive, b"old")
    if "open" not in call:
        with pytest.raises(Unavailable, match="did not finish within"):
            await drive.make_directory(b"more")
        with pytest.raises(Unavailable, match="did not finish within"):
            await drive.delete(b"old", ANYTHING)


@pytest.mark.promise("D3")
async def test_a_listing_ends(meta: Silent, drive: Drive) -> None:
    async with Drive(drive._fs).at(b"dir") as found:
        assert isinstance(found, Directory)
        meta.mute = {"readdir"}
        with pytest.raises(Unavailable, match="did not finish within"):
            await drive.entries(found)


async def test_what_a_verb_left_open_is_closed_later(meta: Silent, drive: Drive) -> None:
    meta.mute = {"commit", "release"}
    with pytest.raises(Unavailable):
        await put(drive, b"new")
    assert (await meta.statfs()).inodes_used == 3
    meta.back.set()
    async with asyncio.timeout(30):
        use = await meta.statfs()
        while use.inodes_used != 2:
            await asyncio.sleep(0)
            use = await meta.statfs()
