"""Write a snapshot of the volume as a tar archive to a file or to stdout (`-`).

Any `tar` reads the archive. `wrkfs load` fills a volume from it. The file appears when it is
complete.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from wrkfs.cli.output import Answer, Progress, counted, filesystem, human
from wrkfs.config import ConfigError
from wrkfs.upkeep import dump

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from wrkfs.config import VolumeConfig

HELP = "write a snapshot of the volume as a tar archive"
STDOUT = "-"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the command's own arguments."""
    parser.add_argument("file", metavar="FILE", help="file to write, or `-` for stdout")


async def run(config: VolumeConfig, arguments: argparse.Namespace) -> Answer:
    """Write the archive. Raises ConfigError when the file cannot be written."""
    try:
        with _target(arguments.file) as out:
            async with filesystem(config) as fs:
                with (
                    Progress("copying rows") as copying,
                    Progress("dumping", in_bytes=True) as writing,
                ):
                    summary = await dump.dump(
                        config, fs, out, copy_progress=copying, write_progress=writing
                    )
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"{arguments.file}: {error.strerror}") from None
    lines = [f"{counted(summary.entries, 'entry', 'entries')}, {human(summary.bytes)}"]
    stream = sys.stderr if arguments.file == STDOUT else sys.stdout
    return Answer(asdict(summary), lines, stream=stream)


@contextmanager
def _target(name: str) -> Iterator[IO[bytes]]:
    """Yield a temporary file of mode 0600, and rename the file when it is complete."""
    if name == STDOUT:
        if sys.stdout.isatty():
            raise ConfigError("stdout is a terminal; name a file, or redirect the output")
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
