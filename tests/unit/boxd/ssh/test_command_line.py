"""Splitting of command lines into words, in linear time."""

from __future__ import annotations

import contextlib
import shlex
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxd.ssh.cli.command import UsageError
from boxd.ssh.cli.command_line import MAX_LINE, MAX_OPTIONS, split_words
from tests.harness.ssh.console import run

if TYPE_CHECKING:
    from tests.harness.simulation.world import World


@given(st.text(alphabet="ab-é\x0b '\"\\\t\r\n", max_size=24))
def test_words_are_the_same_as_those_of_shlex(line: str) -> None:
    try:
        expected: list[str] | None = shlex.split(line)
    except ValueError:
        expected = None
    try:
        words: list[str] | None = split_words(line)
    except UsageError:
        words = None
    assert words == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ls 'a", "no closing quotation"),
        ('ls "a\\"', "no closing quotation"),
        ("ls a\\", "no escaped character"),
        ("a" * (MAX_LINE + 1), "longer than"),
    ],
)
def test_an_invalid_line_is_rejected(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_words(line)


@pytest.mark.parametrize("word", ["a", "a ", "'a'", '"a"', '"a', "'", "\\a", "\\", '"\\"', '"\\a'])
@pytest.mark.parametrize("end", ["", '"', "'", "\\"])
def test_splitting_takes_linear_time(word: str, end: str) -> None:
    """A line eight times as long takes eight times as long; with shlex, a long word takes 64."""
    lines = [word * (size // len(word)) + end for size in (8_000, 64_000)]
    small, large = zip(*(map(_cost, lines) for _ in range(10)), strict=True)
    assert min(large) < 24 * max(min(small), 0.0001)


def _cost(line: str) -> float:
    """Return the CPU seconds of this thread that splitting the line takes."""
    start = time.thread_time()
    with contextlib.suppress(UsageError):
        split_words(line)
    return time.thread_time() - start


@pytest.mark.parametrize("option", ["--json", "-x", "--j", "-", "--json=1"])
async def test_too_many_options_are_rejected(world: World, option: str) -> None:
    result = await run(world, f"ls {f'{option} ' * (MAX_OPTIONS + 1)}")
    assert result.status == UsageError.exit_status
    assert f"at most {MAX_OPTIONS} are allowed" in result.stderr


def test_words_after_two_dashes_are_not_options() -> None:
    line = " ".join(["ls", "--", *["-x"] * 2 * MAX_OPTIONS])
    assert len(split_words(line)) == 2 + 2 * MAX_OPTIONS
