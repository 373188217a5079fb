"""Handle numbers and directory cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box_guest.mount.handles import (
    DOT_COOKIES,
    FIRST_FETCH,
    LIBRARY_BUFFER,
    DirectoryCursor,
    Table,
    entry_size,
)
from tests.unit.wrkfs.drive import ME, Drive
from wrkfs.errors import BadDescriptor
from wrkfs.types import ROOT_INO, SetAttr

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def drive() -> AsyncIterator[Drive]:
    """A volume in memory."""
    made = Drive()
    yield made
    await made.close()


def test_numbers_are_not_used_twice() -> None:
    table: Table[str] = Table()
    first = table.add("a")
    assert table[first] == "a"
    assert table.pop(first) == "a"
    assert table.add("b") != first
    for gone in (first, 99):
        with pytest.raises(BadDescriptor):
            table[gone]
    assert len(table) == 1


async def walk(cursor: DirectoryCursor, take: int) -> list[bytes]:
    """All names, as the kernel asks for them: `take` at a time, by the last cookie."""
    names: list[bytes] = []
    cookie = 0
    while True:
        offered = await cursor.after(cookie)
        entries = offered[:take]
        cursor.took(entries, len(offered))
        if not entries:
            return names
        names += [entry.name for entry in entries]
        cookie = entries[-1].cookie + DOT_COOKIES


@pytest.mark.parametrize("take", [1, 7, FIRST_FETCH])
async def test_a_scan_gives_each_name_once(drive: Drive, take: int) -> None:
    fs = await drive.mount()
    wanted = [b"%04d" % number for number in range(FIRST_FETCH + 50)]
    for name in wanted:
        await fs.mknod(ROOT_INO, name, 0o100644, 0, ME)
    cursor = DirectoryCursor(fs, ROOT_INO)
    assert sorted(await walk(cursor, take)) == wanted
    assert cursor.parent == ROOT_INO
    assert sorted(await walk(cursor, take)) == wanted, "rewinddir reads anew"


async def test_entries_that_stay_are_neither_skipped_nor_repeated(drive: Drive) -> None:
    fs = await drive.mount()
    for number in range(20):
        await fs.mknod(ROOT_INO, b"%02d" % number, 0o100644, 0, ME)
    cursor = DirectoryCursor(fs, ROOT_INO)
    first = (await cursor.after(0))[:5]
    await fs.unlink(ROOT_INO, first[4].name)
    await fs.mknod(ROOT_INO, b"new", 0o100644, 0, ME)
    rest = await cursor.after(first[4].cookie + DOT_COOKIES)
    names = [entry.name for entry in first + rest]
    assert len(names) == len(set(names))
    assert {b"%02d" % number for number in range(20)} <= set(names)


async def test_each_request_is_answered_anew(drive: Drive) -> None:
    fs, other = await drive.mount(), await drive.mount()
    for number in range(20):
        await fs.mknod(ROOT_INO, b"%02d" % number, 0o100644, 0, ME)
    cursor = DirectoryCursor(fs, ROOT_INO)
    first = (await cursor.after(0))[:5]
    await other.unlink(ROOT_INO, b"10")
    changed = (await other.lookup(ROOT_INO, b"11")).ino
    await other.setattr(changed, SetAttr(size=4096))
    rest = {entry.name: entry.attr for entry in await cursor.after(first[4].cookie + DOT_COOKIES)}
    assert b"10" not in rest
    assert rest[b"11"].size == 4096


async def test_a_fetch_is_about_as_long_as_what_the_kernel_takes(drive: Drive) -> None:
    fs = await drive.mount()
    for number in range(FIRST_FETCH + 50):
        await fs.mknod(ROOT_INO, b"%04d" % number, 0o100644, 0, ME)
    cursor = DirectoryCursor(fs, ROOT_INO)
    offered = await cursor.after(0)
    assert len(offered) == FIRST_FETCH
    cursor.took(offered[:24], len(offered))
    offered = await cursor.after(offered[23].cookie + DOT_COOKIES)
    assert len(offered) == 27
    cursor.took(offered, len(offered))
    assert len(await cursor.after(0)) == 54


async def test_the_room_of_an_answer_is_learned(drive: Drive) -> None:
    fs = await drive.mount()
    for number in range(FIRST_FETCH):
        await fs.mknod(ROOT_INO, b"%04d" % number, 0o100644, 0, ME)
    cursor = DirectoryCursor(fs, ROOT_INO)
    offered = await cursor.after(0)
    assert cursor.fitting(offered[:100], 2) == 100
    assert cursor.fitting(offered, 2) == LIBRARY_BUFFER // entry_size(b"0000") - 2
    cursor.took(offered[:24], len(offered), 2)
    assert cursor.fitting(offered, 2) == 24
    assert cursor.fitting(offered, 0) == 26
    assert cursor.fitting(offered[:5], 0) == 5


async def test_the_parent_is_that_of_the_request(drive: Drive) -> None:
    fs = await drive.mount()
    there = await fs.mkdir(ROOT_INO, b"there", 0o755, ME)
    moved = await fs.mkdir(ROOT_INO, b"moved", 0o755, ME)
    cursor = DirectoryCursor(fs, moved.ino)
    await cursor.after(0)
    assert cursor.parent == ROOT_INO
    await fs.rename(ROOT_INO, b"moved", there.ino, b"moved")
    await cursor.after(0)
    assert cursor.parent == there.ino
