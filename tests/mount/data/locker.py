"""A process that locks a file: `locker.py KIND FILE [START LENGTH]`, for test_locks.py.

KIND is flock, fcntl or ofd. It tries without waiting and prints `held` or `busy`; when busy it
waits, then prints `held`. A line on stdin or its end releases: it prints `released` and ends.
`locker.py count KIND FILE N` adds one to the number in FILE, N times, each under the lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys

F_OFD_SETLK, F_OFD_SETLKW = 37, 38


def lock(kind: str, descriptor: int, what: int, start: int = 0, length: int = 0) -> None:
    """Takes or releases a lock; with LOCK_NB it fails when it would wait."""
    if kind == "flock":
        fcntl.flock(descriptor, what)
    elif kind == "fcntl":
        fcntl.lockf(descriptor, what, length, start)
    else:
        command = F_OFD_SETLK if what & fcntl.LOCK_NB else F_OFD_SETLKW
        sort = fcntl.F_UNLCK if what & fcntl.LOCK_UN else fcntl.F_WRLCK
        fcntl.fcntl(descriptor, command, struct.pack("hhqqi4x", sort, 0, start, length, 0))


def hold(kind: str, path: str, start: int, length: int) -> None:
    """Holds the lock until a line comes."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        lock(kind, descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, start, length)
    except (BlockingIOError, PermissionError):
        print("busy", flush=True)
        lock(kind, descriptor, fcntl.LOCK_EX, start, length)
    print("held", flush=True)
    sys.stdin.readline()
    lock(kind, descriptor, fcntl.LOCK_UN, start, length)
    print("released", flush=True)


def count(kind: str, path: str, rounds: int) -> None:
    """Adds to the number that the file holds: read, add, write, all under the lock."""
    descriptor = os.open(path, os.O_RDWR)
    for _ in range(rounds):
        lock(kind, descriptor, fcntl.LOCK_EX)
        number = int(os.pread(descriptor, 20, 0) or b"0")
        os.pwrite(descriptor, b"%d" % (number + 1), 0)
        lock(kind, descriptor, fcntl.LOCK_UN)


if __name__ == "__main__":
    if sys.argv[1] == "count":
        count(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        first, size = (int(word) for word in (sys.argv[3:] or ["0", "0"]))
        hold(sys.argv[1], sys.argv[2], first, size)
