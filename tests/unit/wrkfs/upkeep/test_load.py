"""Loads on stores in memory: an error ends all parts of a load."""

from __future__ import annotations

import asyncio
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from wrkfs.errors import InvalidArgument
from wrkfs.types import ROOT_INO
from wrkfs.upkeep import load

if TYPE_CHECKING:
    from tests.unit.wrkfs.drive import Drive

CONTENT = bytes(200_000)


def entry(name: str, content: bytes = b"") -> bytes:
    """Return the entry of a regular file."""
    header = tarfile.TarInfo(name)
    header.size = len(content)
    return header.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512)


async def loaded(drive: Drive, *entries: bytes) -> None:
    """Load an archive of these entries into the volume."""
    fs = await drive.mount()
    archive = io.BytesIO(b"".join(entries) + bytes(1024))
    await load.load(fs, archive, progress=lambda _done, _all: None)


async def test_a_bad_entry_ends_the_load_though_others_are_still_being_stored(
    drive: Drive,
) -> None:
    fs, storing, never = await drive.mount(drive.blocks), asyncio.Event(), asyncio.Event()

    async def stuck(_key: str) -> None:
        storing.set()
        await never.wait()

    drive.blocks.before_put = stuck

    class Archive(io.BytesIO):
        """Yields the bad entry while the good one is being stored."""

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if b"../bad" in data:
                asyncio.run_coroutine_threadsafe(storing.wait(), loop).result(30)
            return data

    # tarfile reads ahead less than the second file.
    good = entry("good", CONTENT) + entry("other", CONTENT)
    archive = Archive(good + entry("../bad") + bytes(20_000))
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    try:
        with pytest.raises(InvalidArgument, match="leads out"):
            async with asyncio.timeout(30):
                await load.load(fs, archive, progress=lambda _done, _all: None)
        left = [repr(task) for task in asyncio.all_tasks() - before]
        assert not any("_Archive" in task for task in left), left
    finally:
        never.set()
        drive.blocks.before_put = None


async def test_the_name_of_the_staging_directory_is_refused(drive: Drive) -> None:
    with pytest.raises(InvalidArgument, match="wrkfs-load"):
        await loaded(drive, entry("a", b"1"), entry(".wrkfs-load/x", b"2"))
    with pytest.raises(InvalidArgument, match="wrkfs-load"):
        await loaded(drive, entry("./.wrkfs-load", b"2"))
    await loaded(drive, entry("a/.wrkfs-load", b"3"))
    fs = await drive.mount()
    assert [one.name for one in await fs.readdir(ROOT_INO, 0, 10)] == [b"a"]
