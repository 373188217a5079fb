"""Shared by the commands: results, sizes for people, and a progress bar."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from wrkfs.fs import Filesystem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from wrkfs.config import VolumeConfig

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
REDRAW = 0.1
"""Seconds between two updates of a bar."""
WIDTH = 30
"""Width of a bar, in characters."""


def shared(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options of every command. `again` adds them to a verb of a command as well."""
    parser.add_argument(
        "--credentials",
        type=Path,
        default=argparse.SUPPRESS if again else None,
        metavar="FILE",
        help="credential file of the volume (mode 0600); required",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if again else False,
        help="print one JSON document",
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a command: `data` for `--json`, `lines` for people, and the exit status."""

    data: Any
    lines: Sequence[str]
    status: int = 0
    stream: TextIO = field(default_factory=lambda: sys.stdout)


class Command(Protocol):
    """Interface of a command module. Its docstring is the description of the command."""

    HELP: str
    __doc__: str | None

    def declare(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the command's own arguments."""
        ...

    def run(
        self, config: VolumeConfig, arguments: argparse.Namespace, /
    ) -> Coroutine[Any, Any, Answer]:
        """Run the command. Raises ConfigError and WrkfsError."""
        ...


@asynccontextmanager
async def filesystem(config: VolumeConfig) -> AsyncIterator[Filesystem]:
    """Connect to the volume with a separate session. Raises Unavailable."""
    fs = await Filesystem.connect(config, kind="cli")
    try:
        yield fs
    finally:
        await fs.close()


def human(size: int) -> str:
    """Format a number of bytes with a binary unit."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {UNITS[unit]}" if unit else f"{size} B"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return the number with the noun in singular or plural: "1 file", "2 entries"."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


class Progress:
    """A progress bar of one line on stderr. It stays silent unless stderr is a terminal.

    A context manager: the line disappears at the end.
    """

    def __init__(self, what: str, *, in_bytes: bool = False, stream: TextIO | None = None) -> None:
        self._what = what
        self._show = human if in_bytes else str
        self._stream = sys.stderr if stream is None else stream
        self._wanted = self._stream.isatty()
        self._began = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._wanted:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` units are done. A `total` of 0 means unknown."""
        now = time.monotonic()
        if not self._wanted or (now < self._next and done != total):
            return
        self._next = now + REDRAW
        self._stream.write(f"\r\x1b[K{self.picture(done, total, now - self._began)}")
        self._stream.flush()

    def picture(self, done: int, total: int, seconds: float) -> str:
        """Return the text of the line, without control sequences."""
        if not total:
            return f"{self._what}  {self._show(done)}"
        share = min(1.0, done / total)
        bar = "#" * round(WIDTH * share)
        remaining = f", {_clock(seconds / share - seconds)} left" if share and seconds > 1 else ""
        return (
            f"{self._what}  [{bar:.<{WIDTH}}] {share:4.0%}  "
            f"{self._show(done)} of {self._show(total)}{remaining}"
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
