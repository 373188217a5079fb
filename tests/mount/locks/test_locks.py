"""fcntl and flock between two mounts of one volume."""

from __future__ import annotations

import errno
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.harness.mounts.drive import until
from tests.harness.mounts.lockers import Locker, answering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NAMES = count()


@pytest.fixture
def lockers(mounted_twice: tuple[Path, Path]) -> Iterator[Callable[[int], Locker]]:
    """Return a function that starts a process on one of the mounts, with a new file open."""
    name = f"file{next(_NAMES)}"
    started: list[Locker] = []

    def start(mount: int) -> Locker:
        started.append(Locker(mounted_twice[mount] / name))
        return started[-1]

    yield start
    for locker in started:
        locker.kill()


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
@pytest.mark.promise("V7")
def test_ranges_of_processes(lockers: Callable[[int], Locker], other: int) -> None:
    here, there = lockers(0), lockers(other)
    assert here("set", "f", "write", 10, 10) == "done"
    assert there("set", "f", "read", 19, 1) == "EAGAIN"
    assert there("set", "f", "read", 20, 0) == "done"
    assert here("set", "f", "write", 0, 0) == "EAGAIN"
    assert there("get", "f", "read", 0, 0) == f"write 10 10 {0 if other else here.pid}"
    assert here("set", "f", "none", 12, 3) == "done"
    assert there("set", "f", "write", 12, 3) == "done"
    assert there("set", "f", "write", 12, 4) == "EAGAIN"


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
def test_whole_files(lockers: Callable[[int], Locker], other: int) -> None:
    here, there = lockers(0), lockers(other)
    assert here("flock", "f", "SH") == "done"
    assert there("flock", "f", "SH", "NB") == "done"
    assert there("flock", "f", "EX", "NB") == "EAGAIN"
    assert here("flock", "f", "EX", "NB") == "done"
    assert there("flock", "f", "SH", "NB") == "EAGAIN"
    assert there("set", "f", "write", 0, 0) == "done"


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
def test_open_files_own_locks(
    lockers: Callable[[int], Locker], mounted_twice: tuple[Path, Path], other: int
) -> None:
    here, there = lockers(0), lockers(other)
    assert here("ofd-set", "f", "write", 0, 10) == "done"
    assert there("ofd-set", "f", "read", 5, 1) == "EAGAIN"
    assert there("set", "f", "read", 5, 1) == "EAGAIN"
    # A close of another descriptor of the file does not release it, nor that of a copy.
    assert here("dup", "f", "copy") == "done"
    assert here("close", "copy") == "done"
    assert there("ofd-set", "f", "read", 5, 1) == "EAGAIN"
    assert here("close", "f") == "done"
    until(lambda: there("ofd-set", "f", "read", 5, 1) == "done")


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
def test_a_close_releases_the_locks_of_the_process(
    lockers: Callable[[int], Locker], other: int
) -> None:
    here, there = lockers(0), lockers(other)
    assert here("dup", "f", "copy") == "done"
    assert here("set", "f", "write", 0, 0) == "done"
    assert here("close", "copy") == "done"
    assert there("set", "f", "write", 0, 0) == "done"


@pytest.mark.parametrize("end", ["end", "kill"])
def test_the_end_of_a_process_releases_its_locks(
    lockers: Callable[[int], Locker], end: str
) -> None:
    here, there = lockers(0), lockers(1)
    assert here("set", "f", "write", 0, 0) == "done"
    assert here("flock", "f", "EX") == "done"
    getattr(here, end)()
    until(lambda: there("set", "f", "write", 0, 0) == "done")
    until(lambda: there("flock", "f", "EX", "NB") == "done")


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
@pytest.mark.parametrize("verb", ["wait", "ofd-wait", "flock"])
def test_a_process_waits_for_a_lock(
    lockers: Callable[[int], Locker], verb: str, other: int
) -> None:
    here, there = lockers(0), lockers(other)
    take = ("flock", "f", "EX") if verb == "flock" else (verb, "f", "write", 0, 0)
    release = ("flock", "f", "UN") if verb == "flock" else ("set", "f", "none", 0, 0)
    if verb == "ofd-wait":
        release = ("ofd-set", "f", "none", 0, 0)
    assert here(*take) == "done"
    there.begin(*take)
    until(there.waits)
    assert here(*release) == "done"
    assert there.answer() == "done"


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
@pytest.mark.parametrize("verb", ["wait", "flock"])
def test_a_signal_ends_a_wait(lockers: Callable[[int], Locker], verb: str, other: int) -> None:
    here, there, third = lockers(0), lockers(other), lockers(other)
    take = ("flock", "f", "EX") if verb == "flock" else (verb, "f", "write", 0, 0)
    assert here(*take) == "done"
    there.begin(*take)
    until(there.waits)
    there.interrupt()
    assert there.answer() == "EINTR"
    third.begin(*take)
    until(third.waits)
    third.kill()
    here.kill()
    assert there(*take) == "done"


@pytest.mark.parametrize("other", [0, 1], ids=["same mount", "other mount"])
def test_a_deadlock_is_found(lockers: Callable[[int], Locker], other: int) -> None:
    here, there = lockers(0), lockers(other)
    assert here("set", "f", "write", 0, 1) == "done"
    assert there("set", "f", "write", 1, 1) == "done"
    here.begin("wait", "f", "write", 1, 1)
    there.begin("wait", "f", "write", 0, 1)
    # Either of them may close the circle.
    first = answering([here, there])
    second = there if first is here else here
    assert first.answer() == errno.errorcode[errno.EDEADLK]
    assert first("set", "f", "none", 0, 0) == "done"
    assert second.answer() == "done"


def test_waits_of_open_files_are_no_deadlock(lockers: Callable[[int], Locker]) -> None:
    here, there = lockers(0), lockers(1)
    assert here("ofd-set", "f", "write", 0, 1) == "done"
    assert there("ofd-set", "f", "write", 1, 1) == "done"
    here.begin("ofd-wait", "f", "write", 1, 1)
    until(here.waits)
    there.begin("ofd-wait", "f", "write", 0, 1)
    until(there.waits)
    there.interrupt()
    assert there.answer() == "EINTR"


@pytest.mark.promise("V7")
def test_the_next_owner_reads_what_the_last_one_wrote(lockers: Callable[[int], Locker]) -> None:
    """Through the kernel's pages, with the same size each time."""
    sides = [lockers(0), lockers(1)]
    for number in range(40):
        writer, reader = sides[number % 2], sides[1 - number % 2]
        assert writer("wait", "f", "write", 0, 1) == "done"
        assert writer("pwrite", "f", 100, f"{number:08}") == "8"
        assert writer("set", "f", "none", 0, 1) == "done"
        assert reader("wait", "f", "read", 0, 1) == "done"
        assert reader("pread", "f", 100, 8) == f"{number:08}"
        assert reader("set", "f", "none", 0, 1) == "done"


def test_wrong_requests(lockers: Callable[[int], Locker]) -> None:
    here = lockers(0)
    assert here("set", "f", "write", 10, -20) == "EINVAL"
    assert here("set", "f", "write", -1, 0) == "EINVAL"
