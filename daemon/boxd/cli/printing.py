"""Output of commands: lines, progress and tables."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from boxd import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

_PERCENT = re.compile(r"\s*\d+ %")


@contextmanager
def showing(console: Console) -> Iterator[Progress]:
    """Yield a progress display: a spinner on a terminal, else one line per step."""
    if not console.is_terminal:
        yield Progress(console, None)
        return
    with console.status("Starting") as status:
        yield Progress(console, status.update)


class Progress:
    """A callable that shows the current step."""

    def __init__(self, console: Console, update: object) -> None:
        self._console = console
        self._update = update
        self._last_text = ""

    def __call__(self, text: str) -> None:
        """Show a step.

        Without a terminal, a step with a new percentage does not print another line.
        """
        text = log.escape(text)
        if callable(self._update):
            self._update(text)
        elif (step := _PERCENT.sub("", text)) != self._last_text:
            self._last_text = step
            say(self._console, f"boxd: {step}")


def say(console: Console, text: str) -> None:
    """Print one line without markup, highlighting or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print aligned columns to stdout. Rows ignore the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
