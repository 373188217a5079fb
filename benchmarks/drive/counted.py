"""Runs our mount process with counters: `python -m benchmarks.drive.counted FILE ARGUMENT...`.

The arguments are those of `box_guest.mount`. The process counts handlers of FUSE requests, round
trips to PostgreSQL by statement, and object requests. `Counters` writes them to FILE on a signal.
Counting costs about a microsecond per call.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncpg
import pyfuse3

from benchmarks.drive.counters import Counters
from box_guest.mount.__main__ import main
from box_guest.mount.operations import Operations
from wrkfs.data.s3 import S3Blocks
from wrkfs.meta.postgres.links import Link

FUSE, DATABASE, OBJECTS = "fuse", "database", "objects"
VERBS = {"put": "PUT", "get": "GET", "delete": "DELETE"}


def count() -> Counters:
    """Install counters around the methods of the mount process."""
    counters = Counters()
    for name in dir(pyfuse3.Operations):
        if asyncio.iscoroutinefunction(getattr(Operations, name)):
            counters.around(FUSE, Operations, name, name)
    counters.around(DATABASE, Link, "fetch")
    # The first call of a statement on a connection needs an extra round trip to prepare it.
    counters.around(DATABASE, asyncpg.Connection, "prepare", "(prepare)")
    for name, verb in VERBS.items():
        counters.around(OBJECTS, S3Blocks, name, verb)
    return counters


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    count().hand_over(file)
    sys.exit(main())
