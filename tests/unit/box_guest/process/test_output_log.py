"""The stored output of background commands."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from box_guest.process.output_log import OutputLog


def whole(log: OutputLog, size: int = 1000) -> list[tuple[int, bool]]:
    """All stored bytes, each with its stream, read in pieces of at most `size` bytes."""
    offset, found = log.begin, []
    while offset < log.end:
        data, stderr = log.read(offset, size)
        assert 0 < len(data) <= size
        found += [(byte, stderr) for byte in data]
        offset += len(data)
    return found


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=40),
    st.integers(1, 50),
    st.integers(1, 6),
    st.integers(1, 20),
)
def test_the_last_bytes_are_stored(
    pieces: list[tuple[bytes, bool]], capacity: int, runs: int, size: int
) -> None:
    with tempfile.TemporaryDirectory() as place:
        log = OutputLog(Path(place) / "log", capacity, runs)
        expected: list[tuple[int, bool]] = []
        for data, stderr in pieces:
            log.add(data, stderr=stderr)
            expected += [(byte, stderr) for byte in data]
            assert log.end == len(expected)
            assert log.end - log.begin <= capacity
            stored = expected[log.begin :]
            assert whole(log, size) == stored
            changes = sum(one[1] != other[1] for one, other in itertools.pairwise(stored))
            assert changes < runs
            if changes + 1 < runs and log.end > capacity:
                assert len(stored) <= capacity
        assert log.read(log.end, size) == (b"", False)
        log.remove()
        assert os.listdir(place) == []


def test_nothing_is_dropped_below_both_limits(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "log", 100, 10)
    for number in range(10):
        log.add(b"%d" % number * 10, stderr=number % 2 == 1)
    assert (log.begin, log.end) == (0, 100)
    log.add(b"x", stderr=True)
    assert (log.begin, log.end) == (1, 101)


def test_many_changes_between_streams_stay_small(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "log", 1 << 20, 100)
    for number in range(5000):
        log.add(b"x", stderr=number % 2 == 1)
    assert (log.begin, log.end) == (4900, 5000)
    assert len(log._runs) < 2000


@pytest.mark.parametrize("how", ["removed", "a link"])
def test_a_file_that_cannot_be_written_drops_its_output(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log"
    log = OutputLog(path, 100)
    log.add(b"before", stderr=False)
    path.rename(tmp_path / "moved")
    if how == "a link":
        path.symlink_to("moved")
    log.add(b"more", stderr=True)
    assert (log.begin, log.end) == (10, 10)
    assert (tmp_path / "moved").read_bytes() == b"before"
    path.unlink(missing_ok=True)
    (tmp_path / "moved").rename(path)
    log.add(b"after", stderr=True)
    assert whole(log) == [(byte, True) for byte in b"after"]


def test_a_file_that_cannot_be_read_drops_its_output(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "log", 100)
    log.add(b"before", stderr=False)
    (tmp_path / "log").write_bytes(b"")
    assert log.read(0, 10) == (b"", False)
    assert (log.begin, log.end) == (6, 6)
    log.remove()
    log.remove()
