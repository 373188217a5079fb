"""Pages of a drive's trash, and restoring by path and by number, over a drive in memory."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from boxd.errors import BadRequest, BoxdError, Conflict, DriveFull, NotFound
from boxd.workspaces import trash
from boxd.workspaces.drive import Condition
from boxd.workspaces.drive import Drive as PathDrive
from boxd.workspaces.trash import MAX_PAGE, RestoreRequest, TrashQuery, read_page, restore
from tests.unit.wrkfs.drive import ME, Drive
from wrkfs.paths import resolve
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.workspaces.trash import Restored
    from wrkfs.fs import Filesystem


@pytest_asyncio.fixture
async def drive() -> AsyncIterator[Drive]:
    """Return a drive in memory with trash."""
    drive = Drive()
    drive.volume.trash_seconds = 3600
    await drive.mount()
    yield drive
    await drive.close()


@pytest_asyncio.fixture
async def fs(drive: Drive) -> Filesystem:
    """Return a Filesystem of the drive."""
    return await drive.mount()


async def write(fs: Filesystem, *paths: bytes) -> None:
    for path in paths:
        content = [path]

        async def body(content: list[bytes] = content) -> bytes | None:
            return content.pop() if content else None

        await PathDrive(fs).put(path, body, Condition())


async def remove(fs: Filesystem, *paths: bytes) -> None:
    for path in paths:
        await PathDrive(fs).delete(path, Condition())


async def pages(fs: Filesystem, query: TrashQuery) -> list[list[bytes | None]]:
    found, cursor = [], query.cursor
    while True:
        page = await read_page(fs, TrashQuery(query.below, cursor, query.limit, query.size))
        found.append([one.path for one in page.entries])
        cursor = page.cursor
        if cursor is None:
            return found


async def exists(fs: Filesystem, path: bytes) -> bool:
    return (await resolve(fs, path)).attr is not None


async def test_the_newest_entry_comes_first(fs: Filesystem) -> None:
    await write(fs, b"a", b"b", b"c/d")
    await remove(fs, b"a", b"c", b"b")
    (page,) = await pages(fs, TrashQuery())
    assert page == [b"b", *page[1:3], b"a"]
    assert set(page[1:3]) == {b"c", b"c/d"}
    (newest, *_) = (await read_page(fs, TrashQuery(limit=1))).entries
    assert (newest.name, newest.is_dir, newest.is_link, newest.size) == (b"b", False, False, 1)


@pytest.mark.parametrize("limit", [1, 2, 5, MAX_PAGE])
async def test_a_cursor_continues_the_list(fs: Filesystem, limit: int) -> None:
    names = [b"%d" % number for number in range(5)]
    await write(fs, *names)
    await remove(fs, *names)
    found = await pages(fs, TrashQuery(limit=limit))
    assert list(chain(*found)) == names[::-1]
    assert max(map(len, found)) == min(limit, 5)


async def test_a_page_is_limited_in_bytes(fs: Filesystem) -> None:
    names = [b"%d" % number + b"x" * 200 for number in range(5)]
    await write(fs, *names)
    await remove(fs, *names)
    found = await pages(fs, TrashQuery(size=6000))
    assert list(chain(*found)) == names[::-1]
    assert max(map(len, found)) == 2
    assert list(chain(*await pages(fs, TrashQuery(size=1)))) == names[::-1]


async def test_a_page_below_a_path_has_no_other_entries(fs: Filesystem) -> None:
    await write(fs, b"a/b", b"ab")
    await remove(fs, b"a/b", b"ab")
    assert await pages(fs, TrashQuery(b"/a/")) == [[b"a/b"]]
    with pytest.raises(BadRequest, match="not allowed in a path"):
        await read_page(fs, TrashQuery(b"a/../b"))


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "x", "1-2-3", "1-2-3-", "1-2-3-f", "1-2-3-zz", "-1-2-3-00", "1-2-3-00\n"),
        *("1-2-3-" + "00" * 256, "9" * 17 + "-2-3-00", "1" * 10_000, "1-2-3-00-00"),
        "\u0661-2-3-00",
    ],
    ids=lambda cursor: cursor[:12],
)
async def test_other_cursors_are_refused(fs: Filesystem, cursor: str) -> None:
    with pytest.raises(BadRequest, match="cursor is not valid"):
        await read_page(fs, TrashQuery(cursor=cursor))


@pytest.mark.parametrize(
    "cursor", ["0-0-0-00", "9999999999999999-1-1-ff", "1-" + "9" * 18 + "-1-2f"]
)
async def test_a_cursor_may_name_any_place(fs: Filesystem, cursor: str) -> None:
    await read_page(fs, TrashQuery(cursor=cursor))


@pytest.mark.parametrize("limit", [0, -1, MAX_PAGE + 1])
async def test_the_limit_is_limited(fs: Filesystem, limit: int) -> None:
    with pytest.raises(BadRequest, match="limit must be 1 to"):
        await read_page(fs, TrashQuery(limit=limit))


async def test_a_drive_that_was_never_used_has_an_empty_trash() -> None:
    assert await read_page(None, TrashQuery()) == trash.TrashPage([], None)
    with pytest.raises(NotFound, match="'/a': the trash has no such entry"):
        await restore(None, RestoreRequest(path=b"a"))


async def test_a_file_is_restored_at_its_path(fs: Filesystem) -> None:
    await write(fs, b"a/b")
    before = (await resolve(fs, b"a/b")).attr
    await remove(fs, b"a")
    assert _counts(await restore(fs, RestoreRequest(path=b"/a//b"))) == (b"a/b", 1, 0, 0)
    after = (await resolve(fs, b"a/b")).attr
    assert before is not None
    assert after is not None
    assert (after.ino, after.mode, after.uid) == (before.ino, before.mode, before.uid)


async def test_a_directory_is_restored_with_its_contents_elsewhere(fs: Filesystem) -> None:
    await write(fs, b"a/b", b"a/c/d", b"other/e")
    await remove(fs, b"a")
    request = RestoreRequest(path=b"a", to=b"other/again")
    assert _counts(await restore(fs, request)) == (b"other/again", 2, 2, 0)
    assert await exists(fs, b"other/again/c/d")
    assert await pages(fs, TrashQuery()) == [[]]


async def test_an_entry_is_restored_by_its_number(fs: Filesystem) -> None:
    await write(fs, b"f")
    await remove(fs, b"f")
    await write(fs, b"f")
    await remove(fs, b"f")
    newest, oldest = (await read_page(fs, TrashQuery())).entries
    assert newest.number != oldest.number
    request = RestoreRequest(number=oldest.number, to=b"old")
    assert (await restore(fs, request)).path == b"old"
    assert [one.number for one in (await read_page(fs, TrashQuery())).entries] == [newest.number]


async def test_an_existing_path_is_never_replaced(fs: Filesystem) -> None:
    await write(fs, b"f", b"g")
    await remove(fs, b"f")
    await write(fs, b"f")
    with pytest.raises(Conflict, match="'/f': the former path already exists; restore it to anot"):
        await restore(fs, RestoreRequest(path=b"f"))
    with pytest.raises(Conflict, match="'/f': '/g' already exists"):
        await restore(fs, RestoreRequest(path=b"f", to=b"g"))
    assert await pages(fs, TrashQuery()) == [[b"f"]]


async def test_entries_whose_paths_exist_are_listed(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "MAX_MISSING", 1)
    await write(fs, b"a/b", b"a/c", b"a/d")
    await remove(fs, b"a")
    await write(fs, b"a/b", b"a/c")
    result = await restore(fs, RestoreRequest(path=b"a"))
    assert _counts(result) == (b"a", 1, 0, 2)
    assert result.missing == [(b"a/b", "the path already exists")]


@pytest.mark.parametrize(
    ("request_", "error", "text"),
    [
        (RestoreRequest(), BadRequest, "path or the number of a removed entry"),
        (RestoreRequest(path=b"a", number=1), BadRequest, "not both"),
        (RestoreRequest(number=0), BadRequest, "number must be 1 to"),
        (RestoreRequest(number=10**18), BadRequest, "number must be 1 to"),
        (RestoreRequest(number=77), NotFound, "entry 77: .*the trash has no such entry"),
        (RestoreRequest(path=b"none"), NotFound, "'/none': .*the trash has no such entry"),
        (RestoreRequest(path=b"/"), BadRequest, "is the drive itself"),
        (RestoreRequest(path=b"f", to=b"//"), BadRequest, "is the drive itself"),
        (RestoreRequest(path=b"f", to=b"../f"), BadRequest, "not allowed in a path"),
        (RestoreRequest(path=b"f", to=b"a\0b"), BadRequest, "NUL"),
        (RestoreRequest(path=b"f", to=b"n" * 256), BadRequest, "at most 255"),
        (RestoreRequest(path=b"f", to=b"none/f"), NotFound, "directory 'none' does not exist"),
        (RestoreRequest(path=b"f", to=b"g/f"), Conflict, "'g' is not a directory"),
        (RestoreRequest(path=b"f", to=b"link/f"), Conflict, "'link' is not a directory"),
    ],
)
async def test_errors(
    fs: Filesystem, request_: RestoreRequest, error: type[BoxdError], text: str
) -> None:
    await write(fs, b"f", b"g", b"dir/x")
    await fs.symlink(ROOT_INO, b"link", b"/wrk/dir", ME)
    await remove(fs, b"f")
    with pytest.raises(error, match=text):
        await restore(fs, request_)
    assert await pages(fs, TrashQuery()) == [[b"f"]]


async def test_a_full_drive_refuses_to_restore(drive: Drive, fs: Filesystem) -> None:
    await write(fs, b"f")
    await remove(fs, b"f")
    drive.volume.bytes_limit = 0
    with pytest.raises(DriveFull):
        await restore(fs, RestoreRequest(path=b"f"))


def _counts(result: Restored) -> tuple[bytes, int, int, int]:
    return result.path, result.files, result.directories, result.missing_count
