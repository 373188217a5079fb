"""Fills an empty volume from a tar archive (compressed or not), a file or stdin (`-`).

A volume that is not empty is refused. A load that was interrupted can be run again.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wrkfs import load
from wrkfs.cli.output import Answer, Progress, filesystem, human
from wrkfs.config import ConfigError

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from wrkfs.config import VolumeConfig

HELP = "fill an empty volume from a tar archive"


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("file", metavar="FILE", help="`-` for stdin")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """See the module. ConfigError when the file cannot be read."""
    with _source(arguments.file) as source, Progress("loading", in_bytes=True) as bar:
        async with filesystem(config) as fs:
            done = await load.load(fs, source, progress=bar)
    if done.finished:
        lines = ["finished what an interrupted load had read; the archive was not read again"]
    else:
        lines = [f"{done.entries} entries, {human(done.bytes)}"]
    if done.skipped:
        lines.append(f"{done.skipped} extended attributes left out: not of user. or trusted.")
    return Answer(asdict(done), lines)


def _source(name: str) -> AbstractContextManager[IO[bytes]]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror}") from None
