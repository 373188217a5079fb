"""Interrupted closes: later opens of the file see no leftovers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.doubles.meta_store import MemoryMeta
from tests.harness.wait import until
from tests.unit.wrkfs.drive import ME, content, create
from wrkfs.errors import Unavailable
from wrkfs.fs import Filesystem
from wrkfs.layout import INLINE_MAX
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from tests.unit.wrkfs.drive import Drive
    from wrkfs.types import Attr, Ino, SetAttr

OLD, NEW = b"o" * (INLINE_MAX + 1), b"new"


class Refusing(MemoryMeta):
    """A memory store that cannot change attributes."""

    async def setattr(self, ino: Ino, changes: SetAttr) -> Attr:
        raise Unavailable(f"no {changes} for {ino}")


async def test_a_close_that_is_cut_short_stays_in_order_with_later_writes(drive: Drive) -> None:
    fs = await drive.mount(drive.blocks)
    waiting, store = asyncio.Event(), asyncio.Event()

    async def slow(_key: str) -> None:
        waiting.set()
        await store.wait()

    drive.blocks.before_put = slow
    handle = await create(fs)
    await handle.write(0, OLD)
    closing = asyncio.create_task(handle.close())
    await waiting.wait()
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert closing.cancelled()

    async def replace() -> None:
        again = await fs.open(handle.ino, os.O_WRONLY | os.O_TRUNC)
        await again.write(0, NEW)
        await again.close()

    replacing = asyncio.create_task(replace())
    for _ in range(100):
        await asyncio.sleep(0)
    store.set()
    await replacing
    await fs.sync()
    assert await content(fs) == NEW
    await until(lambda: not drive.volume.sustained)
    assert fs.load == (0, 0)


async def test_a_create_that_cannot_truncate_leaves_nothing_open(drive: Drive) -> None:
    good = await drive.mount()
    await (await create(good)).close()
    meta = Refusing(drive.volume)
    await meta.start()
    fs = Filesystem(meta, drive.blocks.attach())
    with pytest.raises(Unavailable):
        await fs.create(ROOT_INO, b"file", 0o644, os.O_RDWR | os.O_TRUNC, ME)
    assert fs.load == (0, 0)
    assert not drive.volume.sustained
    await fs.close()
