"""Starts the PostgreSQL server of a `Cluster` and prints its DSN; the server outlives this process.

A test may have files of a mount open. A process that it forks has them too, and closing them waits
for the mount, which waits for this server.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from boxd.embedded.postgres import EmbeddedPostgres


async def _start(directory: Path) -> str:
    server = EmbeddedPostgres(directory)
    dsn = await server.start()
    await server.detach()
    return dsn


if __name__ == "__main__":
    print(asyncio.run(_start(Path(sys.argv[1]))))
