"""Which sessions count as shells that nobody is attached to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box_guest.process.activity import detached_shells

if TYPE_CHECKING:
    from pathlib import Path

PTS_3 = 136 << 8 | 3


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A box's /proc and /dev/pts, with one terminal."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "pts").mkdir()
    (tmp_path / "pts/3").touch()
    (tmp_path / "pts/ptmx").touch()
    return tmp_path


def process(box: Path, pid: int, session: int, terminal: int, name: str = "sh") -> None:
    """A line of /proc/PID/stat as the kernel writes it."""
    (box / f"proc/{pid}").mkdir()
    line = f"{pid} ({name}) S 1 {pid} {session} {terminal} -1 4194304 93 0"
    (box / f"proc/{pid}/stat").write_text(line)


def count(box: Path, *own: int) -> int:
    return detached_shells(own, proc=box / "proc", terminals=box / "pts")


def test_sessions_count_once_and_only_with_a_terminal(box: Path) -> None:
    process(box, 1, 1, 0)
    process(box, 10, 10, PTS_3)
    process(box, 11, 10, PTS_3)
    process(box, 20, 20, PTS_3 + 1)
    process(box, 30, 30, 0)
    assert count(box) == 2


def test_sessions_of_channels_do_not_count(box: Path) -> None:
    process(box, 10, 10, PTS_3)
    process(box, 11, 10, PTS_3)
    assert count(box, 10, 99) == 0


def test_names_of_programs_may_hold_anything(box: Path) -> None:
    process(box, 10, 10, PTS_3, "x) S 1 1 77 0 (")
    assert count(box, 77) == 1
    assert count(box, 10) == 0


def test_processes_that_end_meanwhile_are_passed_over(box: Path) -> None:
    (box / "proc/40").mkdir()
    process(box, 10, 10, PTS_3)
    assert count(box) == 1


def test_without_terminals_nothing_is_looked_at(box: Path) -> None:
    process(box, 10, 10, PTS_3)
    (box / "pts/3").unlink()
    assert count(box) == 0
    (box / "pts/ptmx").unlink()
    (box / "pts").rmdir()
    assert count(box) == 0
