"""Expected log lines: a test can read them, and no other handler gets them."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def provoked(*loggers: str) -> Iterator[list[str]]:
    """Yield the lines of level WARNING and above of these loggers, with tracebacks."""
    handler = _Lines()
    named = [logging.getLogger(name) for name in loggers]
    for logger in named:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield handler.lines
    finally:
        for logger in named:
            logger.removeHandler(handler)
            logger.propagate = True
