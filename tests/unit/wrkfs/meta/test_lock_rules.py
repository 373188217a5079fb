"""The rules of locks, compared with those of the kernel for a local file.

The owners of the fcntl locks are open file descriptions (F_OFD_SETLK), so one process suffices.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wrkfs import errors
from wrkfs.meta import lock_rules
from wrkfs.types import (
    LOCK_END,
    HeldLock,
    Ino,
    LockMode,
    LockOwner,
    LockRequest,
    LockSpace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Ino(7)
OWNERS = 3
_FLOCK = struct.Struct("hhqqi4x")
_TYPES = {
    LockMode.UNLOCK: fcntl.F_UNLCK,
    LockMode.SHARED: fcntl.F_RDLCK,
    LockMode.EXCLUSIVE: fcntl.F_WRLCK,
}
_OPERATIONS = {
    LockMode.UNLOCK: fcntl.LOCK_UN,
    LockMode.SHARED: fcntl.LOCK_SH,
    LockMode.EXCLUSIVE: fcntl.LOCK_EX,
}


class Step(NamedTuple):
    """One request of one of the owners; `length` 0 means up to the end."""

    owner: int
    mode: LockMode
    first: int
    length: int


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, OWNERS - 1),
        st.sampled_from(LockMode),
        st.one_of(st.integers(0, 12), st.just(LOCK_END - 2)),
        st.integers(0, 6),
    ),
    max_size=25,
)


class KernelFile:
    """A local file with one open file description for each owner."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._files = [stack.enter_context(path.open("r+b")) for _ in range(OWNERS)]
        self._inode = path.stat().st_ino

    def request(self, step: Step) -> bool:
        """Request a lock as fcntl does; return whether it was granted."""
        return self._fcntl(fcntl.F_OFD_SETLK, step) is not None

    def is_free(self, step: Step) -> bool:
        """Return what F_OFD_GETLK says."""
        answer = self._fcntl(fcntl.F_OFD_GETLK, step)
        assert answer is not None
        return bool(_FLOCK.unpack(answer)[0] == fcntl.F_UNLCK)

    def flock(self, step: Step) -> bool:
        """Request a lock as flock(2) does; return whether it was granted."""
        try:
            fcntl.flock(self._files[step.owner], _OPERATIONS[step.mode] | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def locks(self) -> list[tuple[str, int, int]]:
        """Return the kernel's locks on the file: mode, first and last byte."""
        found = []
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[5].rpartition(":")[2] == str(self._inode) and fields[1] != "->":
                last = LOCK_END if fields[7] == "EOF" else int(fields[7])
                found.append((fields[3], int(fields[6]), last))
        return sorted(found)

    def _fcntl(self, command: int, step: Step) -> bytes | None:
        lock = _FLOCK.pack(_TYPES[step.mode], os.SEEK_SET, step.first, step.length, 0)
        try:
            return fcntl.fcntl(self._files[step.owner], command, lock)
        except BlockingIOError:
            return None


@contextmanager
def kernel_file() -> Iterator[KernelFile]:
    """An empty local file."""
    with tempfile.NamedTemporaryFile() as file, ExitStack() as stack:
        yield KernelFile(Path(file.name), stack)


def request(step: Step, space: LockSpace) -> LockRequest:
    owner = LockOwner(space, step.owner)
    if space is LockSpace.WHOLE_FILE:
        return LockRequest(FILE, owner, step.mode)
    last = step.first + step.length - 1 if step.length else LOCK_END
    return LockRequest(FILE, owner, step.mode, step.first, min(last, LOCK_END))


class Rules:
    """All locks of one file, changed by the rules only."""

    def __init__(self) -> None:
        self.held: list[HeldLock] = []

    def request(self, one: LockRequest) -> bool:
        own = lock_rules.of_owner(self.held, one.owner)
        rest = [lock for lock in self.held if lock.owner != one.owner]
        if lock_rules.conflict(self.held, one) is not None:
            if lock_rules.loses_before_wait(own, one):
                self.held = rest
            return False
        self.held = rest + lock_rules.replaced(own, one)
        return True

    def locks(self) -> list[tuple[str, int, int]]:
        names = {LockMode.SHARED: "READ", LockMode.EXCLUSIVE: "WRITE"}
        return sorted((names[lock.mode], lock.first, lock.last) for lock in self.held)


@given(STEPS)
def test_range_locks_are_those_of_the_kernel(steps: list[Step]) -> None:
    rules = Rules()
    with kernel_file() as kernel:
        for step in steps:
            if step.first + step.length - 1 > LOCK_END:
                continue
            one = request(step, LockSpace.RANGES)
            if step.mode is not LockMode.UNLOCK:
                is_free = lock_rules.conflict(rules.held, one) is None
                assert kernel.is_free(step) == is_free
            assert kernel.request(step) == rules.request(one)
            assert kernel.locks() == rules.locks()


@given(STEPS)
def test_whole_file_locks_are_those_of_the_kernel(steps: list[Step]) -> None:
    rules = Rules()
    with kernel_file() as kernel:
        for step in steps:
            assert kernel.flock(step) == rules.request(request(step, LockSpace.WHOLE_FILE))
            assert kernel.locks() == rules.locks()


def test_the_two_kinds_never_conflict() -> None:
    held = HeldLock(LockOwner(LockSpace.WHOLE_FILE, 1), LockMode.EXCLUSIVE, 0, LOCK_END)
    one = LockRequest(FILE, LockOwner(LockSpace.RANGES, 2), LockMode.EXCLUSIVE)
    assert not lock_rules.conflicts(held, one)


def test_the_lock_with_the_lowest_offset_is_the_conflict() -> None:
    owner = LockOwner(LockSpace.RANGES, 1)
    low, high = (HeldLock(owner, LockMode.EXCLUSIVE, first, first + 1) for first in (10, 20))
    one = LockRequest(FILE, LockOwner(LockSpace.RANGES, 2), LockMode.SHARED)
    assert lock_rules.conflict([high, low], one) == low


@pytest.mark.parametrize(
    ("space", "number", "first", "last", "pid"),
    [
        (LockSpace.RANGES, 1, 5, 4, 0),
        (LockSpace.RANGES, 1, -1, 4, 0),
        (LockSpace.RANGES, 1, 0, LOCK_END + 1, 0),
        (LockSpace.RANGES, -1, 0, 4, 0),
        (LockSpace.RANGES, 1 << 64, 0, 4, 0),
        (LockSpace.RANGES, 1, 0, 4, -1),
        (LockSpace.WHOLE_FILE, 1, 0, 4, 0),
    ],
)
def test_impossible_requests_are_refused(
    space: LockSpace, number: int, first: int, last: int, pid: int
) -> None:
    one = LockRequest(FILE, LockOwner(space, number), LockMode.SHARED, first, last, pid)
    with pytest.raises(errors.InvalidArgument):
        lock_rules.check_request(one)
