"""A fenced session recovers completely, whatever happens during the recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doubles.meta_store import MemoryMeta
from tests.unit.wrkfs.drive import ME, create
from wrkfs.errors import Corrupt
from wrkfs.fs import Filesystem
from wrkfs.types import ROOT_INO

if TYPE_CHECKING:
    from tests.unit.wrkfs.drive import Drive
    from wrkfs.types import FileMap, Ino


class Troubled(MemoryMeta):
    """A memory store whose `open` is fenced several times, or reports one inode as corrupt."""

    fences = 0
    corrupt: Ino | None = None

    async def open(self, ino: Ino, *, truncate: bool = False) -> FileMap:
        if self.fences:
            self.fences -= 1
            self._volume.end(self.session)
        if ino == self.corrupt:
            raise Corrupt("a bad row")
        return await super().open(ino, truncate=truncate)


async def troubled(drive: Drive) -> tuple[Filesystem, Troubled]:
    meta = Troubled(drive.volume)
    await meta.start()
    return Filesystem(meta, drive.blocks), meta


async def test_a_fence_while_files_are_reopened_is_survived(drive: Drive) -> None:
    fs, meta = await troubled(drive)
    handle = await create(fs, b"log")
    meta.fences = 1
    drive.volume.end(meta.session)
    await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    assert meta.epoch == 3
    await handle.write(0, b"goes on")
    await handle.fsync()
    assert await handle.read(0, 10) == b"goes on"
    await handle.close()
    await fs.close()


async def test_a_file_that_cannot_be_opened_again_fails_alone(drive: Drive) -> None:
    fs, meta = await troubled(drive)
    bad, good = await create(fs, b"bad"), await create(fs, b"good")
    meta.corrupt = bad.ino
    drive.volume.end(meta.session)
    await fs.mkdir(ROOT_INO, b"d", 0o755, ME)
    await good.write(0, b"x")
    await good.fsync()
    with pytest.raises(Corrupt):
        await bad.write(0, b"x")
    await good.close()
    with pytest.raises(Corrupt):
        await bad.close()
    await fs.close()
