"""The progress bar, and readable sizes."""

from __future__ import annotations

import io

import pytest

from wrkfs.cli.output import Progress, human


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_nothing_is_drawn_but_on_a_terminal() -> None:
    stream = io.StringIO()
    with Progress("work", stream=stream) as bar:
        bar(1, 2)
        bar(2, 2)
    assert stream.getvalue() == ""


def test_a_terminal_shows_the_end_and_is_left_clean() -> None:
    stream = Terminal()
    with Progress("work", stream=stream) as bar:
        bar(1, 4)
        bar(4, 4)
    drawn = stream.getvalue().split("\r")
    assert "100%  4 of 4" in drawn[-2]
    assert drawn[-1] == "\x1b[K"


def test_many_steps_are_few_pictures() -> None:
    stream = Terminal()
    with Progress("work", stream=stream) as bar:
        for done in range(10_000):
            bar(done, 100_000)
    assert stream.getvalue().count("\r") < 1000


@pytest.mark.parametrize(
    ("done", "total", "seconds", "shown"),
    [
        (0, 10, 0.5, "work  [..............................]   0%  0 B of 10 B"),
        (5, 10, 0.5, "work  [###############...............]  50%  5 B of 10 B"),
        (5, 10, 90.0, "work  [###############...............]  50%  5 B of 10 B, 1:30 left"),
        (1, 2048, 2.0, "work  [..............................]   0%  1 B of 2.0 KiB, 1:08:14 left"),
        (20, 10, 2.0, "work  [##############################] 100%  20 B of 10 B, 0:00 left"),
        (3 << 20, 0, 9.0, "work  3.0 MiB"),
    ],
)
def test_pictures(done: int, total: int, seconds: float, shown: str) -> None:
    assert Progress("work", in_bytes=True).picture(done, total, seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 63, "8192.0 PiB")],
)
def test_sizes(size: int, shown: str) -> None:
    assert human(size) == shown
