"""Writes the volume, as it is at this moment, as a tar archive to a file or to stdout (`-`).

Any `tar` reads it; `wrkfs load` makes a volume of it. The file appears when it is complete.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wrkfs import dump
from wrkfs.cli.output import Answer, Progress, filesystem, human
from wrkfs.config import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from wrkfs.config import VolumeConfig

HELP = "write the volume as a tar archive"
STDOUT = "-"


def declare(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("file", metavar="FILE", help="`-` for stdout")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """See the module. ConfigError when the file cannot be written."""
    try:
        with _target(arguments.file) as out:
            async with filesystem(config) as fs:
                with (
                    Progress("copying rows") as copying,
                    Progress("dumping", in_bytes=True) as writing,
                ):
                    done = await dump.dump(config, fs, out, copying=copying, writing=writing)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{arguments.file}: {error.strerror}") from None
    lines = [f"{done.entries} entries, {human(done.bytes)}"]
    if done.skipped:
        lines.append(f"{done.skipped} sockets left out: an archive cannot hold them")
    stream = sys.stderr if arguments.file == STDOUT else sys.stdout
    return Answer(asdict(done), lines, stream=stream)


@contextmanager
def _target(name: str) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is complete, readable by its owner alone."""
    if name == STDOUT:
        if sys.stdout.isatty():
            raise ConfigError("an archive is not for a terminal; name a file")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(name)
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as out:
        try:
            yield out
            out.flush()
            os.fsync(out.fileno())
            os.replace(out.name, target)
        except BaseException:
            os.unlink(out.name)
            raise
