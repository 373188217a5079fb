"""Handle numbers and directory cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box_guest.mount.handles import DIRECTORY_BATCH, DOT_COOKIES, DirectoryCursor, Table
from tests.unit.wrkfs.drive import ME, Drive
from wrkfs.errors import BadDescriptor
from wrkfs.types import ROOT_INO

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
        entries = list(await cursor.after(cookie))[:take]
        if not entries:
            return names
        names += [entry.name for entry in entries]
        cookie = entries[-1].cookie + DOT_COOKIES


@pytest.mark.parametrize("take", [1, 7, DIRECTORY_BATCH])
async def test_a_scan_gives_each_name_once(drive: Drive, take: int) -> None:
    fs = await drive.mount()
    wanted = [b"%04d" % number for number in range(DIRECTORY_BATCH + 50)]
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
    first = list(await cursor.after(0))[:5]
    await fs.unlink(ROOT_INO, first[4].name)
    await fs.mknod(ROOT_INO, b"new", 0o100644, 0, ME)
    rest = list(await cursor.after(first[4].cookie + DOT_COOKIES))
    names = [entry.name for entry in first + rest]
    assert len(names) == len(set(names))
    assert {b"%02d" % number for number in range(20)} <= set(names)
