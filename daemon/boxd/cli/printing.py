"""What a command shows: lines, steps that begin, tables."""

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
    """Steps as a spinner on a terminal, as lines elsewhere."""
    if not console.is_terminal:
        yield Progress(console, None)
        return
    with console.status("Starting") as status:
        yield Progress(console, status.update)


class Progress:
    """Called with what begins now."""

    def __init__(self, console: Console, update: object) -> None:
        self._console = console
        self._update = update
        self._shown = ""

    def __call__(self, text: str) -> None:
        """Shows a step. Where lines are kept, a step that only gets on is not shown again."""
        text = log.escape(text)
        if callable(self._update):
            self._update(text)
        elif (step := _PERCENT.sub("", text)) != self._shown:
            self._shown = step
            say(self._console, f"boxd: {step}")


def say(console: Console, text: str) -> None:
    """One line, as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Aligned columns on stdout, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
