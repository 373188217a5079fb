"""Copy a file or directory within the volume, in one step.

The copy shares the bytes of its source, so it takes space only for what changes later. The new path
must not exist, and its directory must. Changes of the volume wait while the copy is made.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wrkfs.cli.output import Answer, filesystem
from wrkfs.upkeep import copies

if TYPE_CHECKING:
    import argparse

    from wrkfs.config import VolumeConfig

HELP = "copy a file or directory without copying its bytes"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    parser.add_argument("source", metavar="SRC", help="path to copy")
    parser.add_argument("target", metavar="DST", help="path of the copy")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Copy the tree. Raises NotFound, Exists, NotDirectory and QuotaExceeded."""
    source, target = os.fsencode(arguments.source), os.fsencode(arguments.target)
    async with filesystem(config) as fs:
        attr = await copies.clone(fs, source, target)
    data = {"source": arguments.source, "path": arguments.target, "ino": attr.ino}
    return Answer(data, [f"{arguments.source!r} cloned to {arguments.target!r}"])
