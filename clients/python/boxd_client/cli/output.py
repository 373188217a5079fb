"""Output of the command: tables, JSON, colours and progress. Terminals get no control bytes."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Self

from boxd_client.config import colours_allowed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import TextIO

COLOURS = {"running": "32", "suspended": "33", "failed": "31", "error": "31", "bold": "1"}
_STEP = 1024
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TIME_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
REDRAW_S = 0.1


def print_json(value: object) -> None:
    """Print a JSON value."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def note(text: str) -> None:
    """Print a line for people, on standard error."""
    sys.stderr.write(printable(text) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows below their columns. Words with a colour have it at a terminal."""
    lines = [[printable(str(cell)) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = []
        for text, width in zip(line, widths, strict=True):
            name = "bold" if number == 0 else text
            cells.append(coloured(text.ljust(width), name, sys.stdout))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def printable(text: str) -> str:
    """Return a text whose characters cannot control a terminal."""
    return "".join(one if one.isprintable() else f"\\x{ord(one):02x}" for one in text)


def coloured(text: str, name: str, stream: TextIO) -> str:
    """Return a text with the colour of a name, if the stream is a terminal."""
    code = COLOURS.get(name)
    if code is None or not stream.isatty() or not colours_allowed():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def format_size(count: float) -> str:
    """Return a number of bytes in the largest unit with a value of at least one: `1.5 MiB`."""
    value = float(count)
    for unit in _BYTE_UNITS[:-1]:
        if value < _STEP:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= _STEP
    return f"{value:.1f} {_BYTE_UNITS[-1]}"


def format_span(seconds: float) -> str:
    """Return a time span in its two largest units: `2h5m`, `3d`, `0s`."""
    rest = max(0, int(seconds))
    parts: list[str] = []
    for unit, size in _TIME_UNITS:
        count, rest = divmod(rest, size)
        if count and len(parts) < 2:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return "".join(parts) or "0s"


class Progress:
    """A progress bar on standard error; nothing if that is no terminal, or if it is not wanted."""

    def __init__(self, label: str, total: int | None, *, wanted: bool = True) -> None:
        self._label = printable(label)
        self._total = total
        self._visible = wanted and sys.stderr.isatty()
        self._count = 0
        self._start = time.monotonic()
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._visible:
            self._draw()
            sys.stderr.write("\n")

    def advance(self, count: int) -> None:
        """Count bytes that were copied."""
        self._count += count
        if self._visible and time.monotonic() >= self._next:
            self._draw()
            self._next = time.monotonic() + REDRAW_S

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        speed = self._count / max(time.monotonic() - self._start, 0.001)
        text = f" {format_size(self._count)}  {format_size(speed)}/s"
        bar = ""
        if self._total:
            share = min(self._count / self._total, 1.0)
            size = max(min(width - len(self._label) - len(text) - 10, 40), 0)
            filled = round(share * size)
            bar = f" [{'#' * filled}{'-' * (size - filled)}] {share:4.0%}"
        sys.stderr.write("\r\x1b[K" + (self._label + bar + text)[:width])
        sys.stderr.flush()
