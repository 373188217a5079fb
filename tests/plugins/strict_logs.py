"""Fails a test during which something logged a warning or worse that it did not declare.

A test that provokes a warning names it with the fixture `assert_logs`::

    async def test_restart(assert_logs):
        with assert_logs("mount .* died"):
            ...
"""

from __future__ import annotations

import contextlib
import logging
import re
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


class Collector(logging.Handler):
    """Keeps formatted records of level WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging for each record."""
        self.lines.append(self.format(record))


class AssertLogs(Protocol):
    """The fixture: a context manager inside which a pattern must be logged, and may be."""

    def __call__(self, pattern: str) -> contextlib.AbstractContextManager[None]:
        """Expects at least one line that the regular expression is found in."""
        ...


@pytest.fixture(autouse=True)
def log_collector() -> Generator[Collector]:
    """Every undeclared warning fails the test."""
    collector = Collector()
    collector.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(collector)
    yield collector
    root.removeHandler(collector)
    if collector.lines:
        pytest.fail("logged without being declared:\n" + "\n".join(collector.lines), pytrace=False)


@pytest.fixture
def assert_logs(log_collector: Collector) -> AssertLogs:
    """Declares warnings that a test provokes."""

    @contextlib.contextmanager
    def expecting(pattern: str) -> Iterator[None]:
        yield
        matching = [line for line in log_collector.lines if re.search(pattern, line)]
        assert matching, f"nothing logged matches {pattern!r}: {log_collector.lines}"
        log_collector.lines = [line for line in log_collector.lines if line not in matching]

    return expecting
