"""The part of the daemon that answers a PUT, as a process: `python -m tests.crash.putting`.

It reads a volume's credentials and a first version from standard input, and puts one version after
the other of the same file. A line says which one has been answered.
"""

from __future__ import annotations

import asyncio
import sys

from boxd.workspaces.drive import Condition, Drive
from wrkfs.config import VolumeConfig
from wrkfs.fs import Filesystem

PATH = b"/folder/big"
SIZE = 64 * 1024 * 1024
PIECE = 1024 * 1024


def piece(version: int) -> bytes:
    """Every piece of a version's bytes."""
    return version.to_bytes(8, "big") * (PIECE // 8)


async def put(drive: Drive, version: int) -> None:
    """One PUT."""
    pieces = iter([piece(version)] * (SIZE // PIECE))

    async def body() -> bytes | None:
        return next(pieces, None)

    await drive.put(PATH, body, Condition())


async def main(config: VolumeConfig, version: int) -> None:
    """Puts until it is killed."""
    drive = Drive(await Filesystem.connect(config, kind="http"))
    while True:
        sys.stdout.write(f"begins {version}\n")
        sys.stdout.flush()
        await put(drive, version)
        sys.stdout.write(f"answered {version}\n")
        sys.stdout.flush()
        version += 1


if __name__ == "__main__":
    first = int(sys.stdin.readline())
    asyncio.run(main(VolumeConfig.from_json(sys.stdin.read()), first))
