"""Access times with relatime semantics."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.doubles.meta_store import MemoryMeta
from tests.unit.wrkfs.drive import ME, create
from wrkfs import atime
from wrkfs.errors import Unavailable
from wrkfs.types import ROOT_INO, SetAttr

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.wrkfs.drive import Drive
    from wrkfs.fs import Filesystem
    from wrkfs.types import Attr, Ino


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """New times are sent in the next step of the loop."""
    monkeypatch.setattr(atime, "SEND_DELAY", 0.0)


async def read(fs: Filesystem, ino: Ino, flags: int = os.O_RDONLY) -> int:
    """Read the whole file; return its access time."""
    await fs.lookup(ROOT_INO, b"file")
    handle = await fs.open(ino, flags)
    await handle.read(0, 100)
    await handle.close()
    return (await fs.getattr(ino)).atime_ns


async def stored(drive: Drive, ino: Ino) -> int:
    """Return the access time that other sessions see after all times are sent."""
    for _ in range(10):
        await asyncio.sleep(0)
    return drive.volume.nodes[ino].attr.atime_ns


async def test_the_first_read_after_a_change_moves_it(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    ino = handle.ino
    await handle.write(0, b"x")
    await handle.close()
    now = time.time_ns()
    first = await read(fs, ino)
    assert first >= now
    assert await stored(drive, ino) == first
    assert await read(fs, ino) == first
    await fs.setattr(ino, SetAttr(mode=0o600))
    assert await read(fs, ino) > first, "a change of attributes counts"


async def test_an_old_one_moves_once_a_day(drive: Drive) -> None:
    fs = await drive.mount()
    ino = (await create(fs)).ino
    yesterday = time.time_ns() - atime.DAY_NS - 1
    node = drive.volume.nodes[ino]
    node.change(mtime_ns=1, ctime_ns=1, atime_ns=yesterday)
    assert await read(fs, ino) > yesterday
    assert await stored(drive, ino) > yesterday
    node.change(mtime_ns=1, ctime_ns=1, atime_ns=yesterday + 10**12)
    assert await read(fs, ino) == yesterday + 10**12


async def test_noatime_and_snapshots_leave_it(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    old = (await fs.getattr(handle.ino)).atime_ns
    assert await read(fs, handle.ino, os.O_RDONLY | os.O_NOATIME) == old
    snapshot = await fs.open_snapshot(handle.ino)
    await snapshot.read(0, 10)
    await snapshot.close()
    assert (await fs.getattr(handle.ino)).atime_ns == old


async def test_what_a_user_sets_wins(drive: Drive) -> None:
    fs = await drive.mount()
    ino = (await create(fs)).ino
    await read(fs, ino)
    assert (await fs.setattr(ino, SetAttr(atime_ns=5))).atime_ns == 5
    assert await stored(drive, ino) == 5


async def test_directories_and_links_are_read_too(drive: Drive) -> None:
    fs = await drive.mount()
    there = await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    link = await fs.symlink(ROOT_INO, b"l", b"d", ME)
    for attr, name in ((there, b"d"), (link, b"l")):
        await fs.lookup(ROOT_INO, name)
        if attr.is_dir:
            await fs.readdir(attr.ino, 0, 10)
        else:
            await fs.readlink(attr.ino)
        assert (await fs.getattr(attr.ino)).atime_ns > attr.atime_ns


async def test_closing_tells_the_rest(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atime, "SEND_DELAY", 1000.0)
    fs = await drive.mount()
    ino = (await create(fs)).ino
    told = await read(fs, ino)
    assert await stored(drive, ino) < told
    await fs.close()
    assert await stored(drive, ino) == told


async def test_a_store_that_is_out_loses_them_silently(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = await drive.mount()
    ino = (await create(fs)).ino

    async def out(_atimes: Mapping[Ino, int]) -> None:
        raise Unavailable("no database")

    monkeypatch.setattr(drive.metas[0], "touch", out)
    await read(fs, ino)
    await stored(drive, ino)
    assert await read(fs, ino) > 0


async def test_an_answer_from_before_it_was_told_is_corrected(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = await drive.mount()
    meta, late = drive.metas[0], asyncio.Event()
    ino = (await create(fs)).ino

    async def answered_late(ino: Ino) -> Attr:
        attr = await MemoryMeta.getattr(meta, ino)
        await late.wait()
        return attr

    with monkeypatch.context() as patch:
        patch.setattr(meta, "getattr", answered_late)
        asked = asyncio.create_task(fs.getattr(ino))
        await asyncio.sleep(0)
    told = await read(fs, ino)
    assert await stored(drive, ino) == told
    late.set()
    assert (await asked).atime_ns == told
    # Another session may set it back: later requests return that time.
    other = await drive.mount()
    await other.setattr(ino, SetAttr(atime_ns=5))
    assert (await fs.getattr(ino)).atime_ns == 5
