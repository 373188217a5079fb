"""The drive over HTTP: content, listings, stores and memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.workspaces.pool import LIMITS
from tests.harness.http.web import ALICE, Web
from wrkfs import paths
from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wrkfs.config import VolumeConfig

MIB = 1 << 20
STATUS = Path("/proc/self/status")


async def names(web: Web, path: bytes = b"") -> list[bytes]:
    """Return the names in a directory of the first owner's drive, read inside the service."""
    fs = (await web.drives.volume()).fs
    found = await paths.resolve(fs, path)
    assert found.attr is not None
    return sorted(entry.name for entry in await fs.readdir(found.attr.ino, 0, 10_000))


def resident(field: str) -> int:
    """Return `VmRSS`, the present value, or `VmHWM`, the maximum since `forget_peak`, in bytes."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> int:
    """Reset the peak; return the resident bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


async def http_drive(web: Web, volume: VolumeConfig) -> Filesystem:
    """Put the owner's drive on the volume, with the limits of the service."""
    fs = await Filesystem.connect(volume, kind="http", limits=LIMITS)
    web.drives.given[ALICE.owner, None] = fs
    return fs


def piece(number: int) -> bytes:
    """Return one MiB, which differs for each number."""
    return hashlib.sha256(b"%d" % number).digest() * (MIB // 32)


async def body(size: int) -> AsyncIterator[bytes]:
    """Yield the content of a file."""
    for number in range(size // MIB):
        yield piece(number)


async def real_drive(web: Web, volume: VolumeConfig) -> Filesystem:
    """Put the owner's drive on the volume."""
    fs = await Filesystem.connect(volume, kind="http")
    web.drives.given[ALICE.owner, None] = fs
    return fs
