"""Filesystems on memory stores for unit tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.doubles.block_store import MemoryBlocks
from tests.doubles.meta_store import MemoryMeta
from tests.doubles.meta_volume import MemoryVolume
from wrkfs.fs import DEFAULT_LIMITS, Filesystem
from wrkfs.types import ROOT_INO, Caller

if TYPE_CHECKING:
    from wrkfs.config import Limits
    from wrkfs.data.diskcache import DiskCache
    from wrkfs.handle import FileHandle

ME = Caller(1000, 1000)


class Drive:
    """One volume in memory; `mount` returns a new session of it."""

    def __init__(self) -> None:
        self.volume = MemoryVolume()
        self.blocks = MemoryBlocks()
        self.metas: list[MemoryMeta] = []
        self._mounted: list[Filesystem] = []

    async def mount(
        self,
        blocks: MemoryBlocks | None = None,
        disk: DiskCache | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> Filesystem:
        """A Filesystem of a new session."""
        meta = MemoryMeta(self.volume)
        await meta.start()
        self.metas.append(meta)
        blocks = blocks or self.blocks.attach()
        self._mounted.append(Filesystem(meta, blocks, limits=limits, disk=disk))
        return self._mounted[-1]

    async def close(self) -> None:
        """Closes all sessions."""
        for fs in self._mounted:
            await fs.close()


async def create(fs: Filesystem, name: bytes = b"file", flags: int = os.O_RDWR) -> FileHandle:
    """A new open file in the root."""
    return (await fs.create(ROOT_INO, name, 0o644, flags, ME))[1]


async def content(fs: Filesystem, name: bytes = b"file") -> bytes:
    """All bytes of a file in the root, read through a new handle."""
    attr = await fs.lookup(ROOT_INO, name)
    handle = await fs.open(attr.ino, os.O_RDONLY)
    try:
        return await handle.read(0, attr.size + 1)
    finally:
        await handle.close()
