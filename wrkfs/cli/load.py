"""Fill an empty volume from a tar archive, compressed or not: a file or stdin (`-`).

The command rejects a volume that has files. An interrupted load can be run again.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wrkfs.cli.output import Answer, Progress, counted, filesystem, human
from wrkfs.config import ConfigError
from wrkfs.upkeep import load

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from wrkfs.config import VolumeConfig

HELP = "fill an empty volume from a tar archive"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    parser.add_argument("file", metavar="FILE", help="archive to read, or `-` for stdin")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Load the archive. Raises ConfigError when the file cannot be read."""
    with _source(arguments.file) as source, Progress("loading", in_bytes=True) as bar:
        async with filesystem(config) as fs:
            result = await load.load(fs, source, progress=bar)
    if result.finished:
        lines = ["finished an interrupted load; the archive was not read again"]
    else:
        lines = [f"{counted(result.entries, 'entry', 'entries')}, {human(result.bytes)}"]
    if result.skipped:
        lines.append(
            f"{result.skipped} extended attributes skipped: only user. and trusted. are supported"
        )
    return Answer(asdict(result), lines)


def _source(name: str) -> AbstractContextManager[IO[bytes]]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
