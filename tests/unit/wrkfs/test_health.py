"""`health` of stores that answer, report errors, or do not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.doubles.meta_store import MemoryMeta
from tests.unit.wrkfs.drive import Drive, create
from wrkfs.errors import AccessDenied
from wrkfs.fs import Filesystem
from wrkfs.health import health

if TYPE_CHECKING:
    from wrkfs.types import StatFs


class Silent(MemoryMeta):
    """A database that does not answer."""

    async def statfs(self) -> StatFs:
        """Never."""
        never: asyncio.Future[StatFs] = asyncio.get_running_loop().create_future()
        return await never


async def test_all_is_well(drive: Drive) -> None:
    fs = await drive.mount()
    handle = await create(fs)
    await handle.write(0, b"x" * 1000)
    told = await health(fs)
    assert (told.health, told.open_files, told.inodes_used) == ("ok", 1, 1)
    assert (told.bytes_limit, told.cache_disk_bytes, told.cache_disk_state) == (None, None, "none")
    assert told.memory_bytes > 1 << 20
    assert told.pending_bytes in (0, 1000)
    await handle.close()
    told = await health(fs)
    assert (told.pending_bytes, told.open_files, told.bytes_used) == (0, 0, 1000)


async def test_a_store_that_refuses_is_named(drive: Drive) -> None:
    async def refuse(_key: str) -> None:
        raise AccessDenied("credentials")

    fs = await drive.mount()
    drive.blocks.before_get = refuse
    blocks = drive.blocks.attach()
    blocks.before_get = refuse
    fs = await drive.mount(blocks)
    assert (
        await health(fs)
    ).health == "the object store reports an error: Permission denied: credentials"


async def test_silent_stores_are_named_in_time(drive: Drive) -> None:
    async def wait(_key: str) -> None:
        await asyncio.get_running_loop().create_future()

    meta = Silent(drive.volume)
    await meta.start()
    blocks = drive.blocks.attach()
    blocks.before_get = wait
    fs = Filesystem(meta, blocks)
    told = await health(fs, patience=0.05)
    assert "database has not answered for 0.05 s" in told.health
    assert "store has not answered for 0.05 s" in told.health
    assert told.bytes_used is None
    await fs.close()
