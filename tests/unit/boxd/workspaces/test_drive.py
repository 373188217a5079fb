"""Whole-path verbs over a drive in memory."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.errors import (
    BadRequest,
    BoxdError,
    Conflict,
    DriveFull,
    NotFound,
    PreconditionFailed,
    TooLarge,
    Unavailable,
)
from boxd.workspaces.drive import (
    PIECE,
    Condition,
    Directory,
    Drive,
    OpenFile,
    UploadBuffer,
    translated,
)
from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_store import MemoryMeta
from wrkfs import errors as drive_errors
from wrkfs.fs import Filesystem
from wrkfs.layout import BLOCK_SIZE
from wrkfs.types import ROOT_INO, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

ANYTHING = Condition()


def body(*pieces: bytes) -> Callable[[], Awaitable[bytes | None]]:
    """A body that comes in pieces."""
    left = list(pieces)

    async def following() -> bytes | None:
        return left.pop(0) if left else None

    return following


@pytest_asyncio.fixture
async def fs() -> AsyncIterator[Filesystem]:
    """An empty drive."""
    meta = MemoryMeta()
    await meta.start()
    filesystem = Filesystem(meta, MemoryBlocks())
    yield filesystem
    await filesystem.close()


async def content(drive: Drive, path: bytes) -> bytes:
    """All bytes of a file."""
    async with drive.at(path) as found:
        assert isinstance(found, OpenFile)
        return b"".join([bytes(piece) async for piece in found.pieces(0, found.size)])


async def listed(drive: Drive, path: bytes) -> list[tuple[bytes, bool, int]]:
    """A listing as plain tuples."""
    async with drive.at(path) as found:
        assert isinstance(found, Directory)
        return [(one.name, one.is_dir, one.size) for one in await drive.entries(found)]


async def test_put_tells_whether_it_created_and_which_version(fs: Filesystem) -> None:
    drive = Drive(fs)
    first = await drive.put(b"a/b/c", body(b"one", b"two"), ANYTHING)
    assert first.created
    assert await content(drive, b"a/b/c") == b"onetwo"
    second = await drive.put(b"a/b/c", body(), ANYTHING)
    assert not second.created
    assert second.tag != first.tag
    assert await content(drive, b"a/b/c") == b""


class Crashing(MemoryMeta):
    """A memory store whose database crashes, once, before it has made a version durable."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.before_sync: Callable[[], Awaitable[object]] | None = None

    async def sync(self) -> None:
        crash, self.before_sync = self.before_sync, None
        if crash is not None:
            await crash()
            assert self.on_crash is not None
            self.on_crash(False)
        self.syncs += 1
        await super().sync()


async def test_a_tag_is_told_of_a_version_that_stays() -> None:
    meta = Crashing()
    await meta.start()
    fs = Filesystem(meta, MemoryBlocks())
    drive = Drive(fs)
    await drive.put(b"f", body(b"old"), ANYTHING)
    before = meta.syncs

    async def change() -> None:
        await drive.put(b"f", body(b"new"), ANYTHING)

    async with drive.at(b"f") as found:
        assert isinstance(found, OpenFile)
        undone = found.tag
    assert meta.syncs == before + 1
    meta.before_sync = change
    async with drive.at(b"f") as found:
        assert isinstance(found, OpenFile)
        assert found.tag != undone
        assert b"".join([piece async for piece in found.pieces(0, 3)]) == b"new"
    await fs.close()


async def test_a_body_that_fails_changes_nothing(fs: Filesystem) -> None:
    drive = Drive(fs)
    await drive.put(b"f", body(b"old"), ANYTHING)

    async def broken() -> bytes | None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await drive.put(b"f", broken, ANYTHING)
    with pytest.raises(ConnectionResetError):
        await drive.put(b"new/dir/f", broken, ANYTHING)
    assert await content(drive, b"f") == b"old"
    assert [name for name, _, _ in await listed(drive, b"")] == [b"f"]


async def test_parents_that_vanish_meanwhile_are_made_again(fs: Filesystem) -> None:
    drive = Drive(fs)
    await drive.make_directory(b"a/b")
    gone = False

    async def late() -> bytes | None:
        nonlocal gone
        if gone:
            return None
        gone = True
        await fs.remove_tree(ROOT_INO, b"a")
        return b"x"

    assert (await drive.put(b"a/b/f", late, ANYTHING)).created
    assert await content(drive, b"a/b/f") == b"x"


async def test_a_directory_that_appears_meanwhile_is_a_conflict(fs: Filesystem) -> None:
    drive = Drive(fs)
    made = False

    async def late() -> bytes | None:
        nonlocal made
        if made:
            return None
        made = True
        await drive.make_directory(b"f")
        return b"x"

    with pytest.raises(Conflict):
        await drive.put(b"f", late, ANYTHING)
    assert await listed(drive, b"f") == []


async def test_many_make_the_same_directories_at_once(fs: Filesystem) -> None:
    drive = Drive(fs)
    made = await asyncio.gather(*(drive.make_directory(b"a/b/c") for _ in range(20)))
    assert sum(made) == 1
    assert not await drive.make_directory(b"a/b")


async def test_listing_is_sorted_by_bytes(fs: Filesystem) -> None:
    drive = Drive(fs)
    for name in (b"b", b"\xff", b"B", b"a/x"):
        await drive.put(name, body(b"12"), ANYTHING)
    sizes = await listed(drive, b"")
    assert [(name, is_dir) for name, is_dir, _ in sizes] == [
        (b"B", False),
        (b"a", True),
        (b"b", False),
        (b"\xff", False),
    ]
    assert sizes[0][2] == 2


async def test_a_part_of_a_file(fs: Filesystem) -> None:
    drive = Drive(fs)
    data = bytes(range(256)) * 20_000
    await drive.put(b"f", body(data), ANYTHING)
    async with drive.at(b"f") as found:
        assert isinstance(found, OpenFile)
        part = b"".join([bytes(piece) async for piece in found.pieces(1_000_003, 3_000_001)])
        assert part == data[1_000_003:3_000_001]
        async for piece in found.pieces(0, found.size):
            assert bytes(piece) == data[: len(piece)]
            break


async def test_conditions(fs: Filesystem) -> None:
    drive = Drive(fs)
    tag = (await drive.put(b"f", body(b"x"), Condition(absent=True))).tag
    for wrong in (
        Condition(absent=True),
        Condition(match=lambda seen: seen != tag),
        Condition(unless=lambda seen: seen == tag),
    ):
        with pytest.raises(PreconditionFailed):
            await drive.put(b"f", body(b"y"), wrong)
        with pytest.raises(PreconditionFailed):
            await drive.delete(b"f", wrong)
    with pytest.raises(PreconditionFailed, match="the path does not exist"):
        await drive.put(b"g", body(b"y"), Condition(match=lambda _: True))
    right = Condition(match=lambda seen: seen == tag)
    assert right.pin(None).version is None
    await drive.put(b"f", body(b"y"), right)
    await drive.delete(b"f", Condition(unless=lambda seen: seen == tag))


async def test_what_cannot_be_removed(fs: Filesystem) -> None:
    drive = Drive(fs)
    await drive.put(b"f", body(), ANYTHING)
    for path in (b"", b"/", b"//"):
        with pytest.raises(BadRequest):
            await drive.delete(path, ANYTHING)
    for path in (b"absent", b"f/", b"f/below", b"no/where"):
        with pytest.raises(NotFound):
            await drive.delete(path, ANYTHING)
    for path in (b"..", b"a/./b", b"\0", b"x" * 256):
        with pytest.raises(BadRequest):
            await drive.delete(path, ANYTHING)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (drive_errors.NotFound(), NotFound),
        (drive_errors.Stale(), NotFound),
        (drive_errors.SymlinkLoop(), NotFound),
        (drive_errors.NotDirectory(), Conflict),
        (drive_errors.IsDirectory(), Conflict),
        (drive_errors.NameTooLong(), BadRequest),
        (drive_errors.FileTooBig(), TooLarge),
        (drive_errors.NoSpace(), DriveFull),
        (drive_errors.QuotaExceeded(), DriveFull),
        (drive_errors.PreconditionFailed(), PreconditionFailed),
        (drive_errors.Unavailable(), Unavailable),
        (drive_errors.Fenced(), Unavailable),
        (drive_errors.Corrupt(), drive_errors.Corrupt),
    ],
)
def test_errors_of_the_drive_become_errors_of_the_service(
    error: drive_errors.WrkfsError, expected: type[Exception]
) -> None:
    def fail() -> None:
        with translated("'/f'"):
            raise error

    with pytest.raises(expected) as caught:
        fail()
    assert isinstance(caught.value, BoxdError) or caught.value is error


def test_a_file_in_the_path_means_missing_where_it_is_read() -> None:
    def fail() -> None:
        with translated("'/f'", missing=True):
            raise drive_errors.NotDirectory

    with pytest.raises(NotFound, match="'/f'"):
        fail()


async def test_a_file_written_into_while_it_is_read_comes_as_it_was(fs: Filesystem) -> None:
    drive, size = Drive(fs), 5 * PIECE + 7
    await drive.put(b"f", body(b"a" * size), ANYTHING)
    async with drive.at(b"f") as found:
        assert isinstance(found, OpenFile)
        pieces = found.pieces(0, found.size)
        came = bytes(await anext(pieces))
        writer = await fs.open((await fs.lookup(ROOT_INO, b"f")).ino, os.O_RDWR)
        await writer.write(0, b"b" * (size - 9))
        await writer.close()
        await fs.setattr(writer.ino, SetAttr(size=PIECE))
        async for piece in pieces:
            came += bytes(piece)
    assert came == b"a" * size
    assert await content(drive, b"f") == b"b" * PIECE


async def gathered(buffer: UploadBuffer, *pieces: bytes) -> list[bytes]:
    """What is written of a body."""
    return [bytes(data) async for data in buffer.blocks(body(*pieces))]


async def test_uploads_are_written_in_whole_blocks() -> None:
    buffer = UploadBuffer()
    data = os.urandom(2 * BLOCK_SIZE + 12345)
    pieces = [data[at : at + 60_000] for at in range(0, len(data), 60_000)]
    written = await gathered(buffer, *pieces)
    assert [len(one) for one in written] == [BLOCK_SIZE, BLOCK_SIZE, 12345]
    assert b"".join(written) == data
    assert await gathered(buffer, data) == [data[: 2 * BLOCK_SIZE], data[2 * BLOCK_SIZE :]]
    assert await gathered(buffer, b"small") == [b"small"]
    assert await gathered(buffer) == []
    assert buffer.held == 0


async def test_the_upload_buffer_is_bounded_over_all_uploads() -> None:
    buffer = UploadBuffer(limit=100)
    first = buffer.blocks(body(b"a" * 60, b"b" * 60, b"c"))
    assert await anext(first) == b"a" * 60 + b"b" * 60
    second = buffer.blocks(body(b"d" * 100, b"e", b"f"))
    assert await anext(second) == b"d" * 100 + b"e"
    assert await gathered(buffer, b"g" * 101) == [b"g" * 101]
    assert [data async for data in first] == [b"c"]
    assert [data async for data in second] == [b"f"]
    assert buffer.held == 0


async def test_an_upload_that_fails_holds_nothing() -> None:
    buffer = UploadBuffer()

    async def cut() -> bytes | None:
        if buffer.held:
            raise ConnectionResetError
        return b"x"

    with pytest.raises(ConnectionResetError):
        [data async for data in buffer.blocks(cut)]
    assert buffer.held == 0
    async with aclosing(buffer.blocks(body(b"y" * BLOCK_SIZE, b"z"))) as blocks:
        await anext(blocks)
    assert buffer.held == 0
