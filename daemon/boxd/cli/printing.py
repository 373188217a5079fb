"""Output of commands: lines, progress and tables."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from boxd import log
from boxd.errors import BadRequest, BoxdError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from rich.console import Console

_log = logging.getLogger(__name__)
_PERCENT = re.compile(r"\s*\d+ %")


@contextmanager
def showing(console: Console) -> Iterator[Progress]:
    """Yield a progress display: a spinner on a terminal, else one line per step.

    A log in JSON has one record per step, also on a terminal.
    """
    if not console.is_terminal or log.is_json():
        yield Progress(console, None)
        return
    with console.status("Starting") as status:
        yield Progress(console, status.update)


class Steps:
    """A progress display that is shown only within its context, which may be entered again.

    Steps outside of the context are ignored.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stack = ExitStack()
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        self._progress = self._stack.enter_context(showing(self._console))
        return self

    def __exit__(self, *_: object) -> None:
        self._progress = None
        self._stack.close()

    def __call__(self, text: str) -> None:
        """Show a step."""
        if self._progress is not None:
            self._progress(text)


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
            say(self._console, step if log.is_json() else f"boxd: {step}")


def say(console: Console, text: str) -> None:
    """Print one line without markup, highlighting or wrapping; into the log if that is JSON."""
    if log.is_json():
        _log.info("%s", text)
        return
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def report(text: str) -> None:
    """Print an error for the operator; into the log if that is JSON."""
    if log.is_json():
        _log.error("%s", text)
    else:
        print(f"boxd: {log.escape(log.redact(text))}", file=sys.stderr)


def refused(work: Callable[[], int]) -> int:
    """Return the exit status of `work`; print the text of a BoxdError."""
    try:
        return work()
    except BoxdError as error:
        report(str(error))
        return 2 if isinstance(error, BadRequest) else 1


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print aligned columns to stdout. Rows ignore the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
