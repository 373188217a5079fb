"""Requests on ranges of files: lseek(2) for data and holes, fallocate(2), copy_file_range(2).

Stock pyfuse3 does not pass these requests, and the kernel then answers them itself: it sees no
holes, allocates nothing, and copies by reads and writes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wrkfs.errors import InvalidArgument, NotSupported

if TYPE_CHECKING:
    from wrkfs.handle import FileHandle
    from wrkfs.open_files import FileRanges

KEEP_SIZE = 0x01
PUNCH_HOLE = 0x02
ZERO_RANGE = 0x10
_MODES = frozenset(
    {0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE},
)
"""Modes of fallocate(2) that the drive supports; collapsed and inserted ranges are refused."""


async def seek(ranges: FileRanges, handle: FileHandle, offset: int, whence: int) -> int:
    """LSEEK: the kernel itself handles every other `whence`."""
    if whence == os.SEEK_DATA:
        return await ranges.next_data(handle, offset)
    if whence == os.SEEK_HOLE:
        return await ranges.next_hole(handle, offset)
    raise InvalidArgument("unknown whence of lseek")


async def allocate(
    ranges: FileRanges, handle: FileHandle, mode: int, offset: int, length: int
) -> None:
    """FALLOCATE: a range of zeros is a hole."""
    if mode not in _MODES:
        raise NotSupported("this mode of fallocate")
    clear, grow = bool(mode & (PUNCH_HOLE | ZERO_RANGE)), not mode & KEEP_SIZE
    await ranges.allocate(handle, offset, length, clear=clear, grow=grow)
