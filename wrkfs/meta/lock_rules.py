"""Rules of advisory locks: which locks conflict, and what a request leaves of its owner's locks.

The rules are those of Linux for locks on a local file: fcntl(2) and flock(2). The SQL functions in
functions/6_locks.sql follow the same rules. Everything here is pure arithmetic on ranges of bytes,
whose ends are inclusive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrkfs.errors import InvalidArgument
from wrkfs.types import LOCK_END, HeldLock, LockMode, LockOwner, LockSpace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wrkfs.types import LockRequest

OWNER_MAX = (1 << 64) - 1
"""Highest number of an owner: the kernel sends 64 bits."""
PID_MAX = (1 << 31) - 1


def check_request(request: LockRequest) -> None:
    """Raise InvalidArgument for a range, owner or process that Linux would not send."""
    if not 0 <= request.first <= request.last <= LOCK_END:
        raise InvalidArgument("the range of the lock is empty or negative")
    if request.owner.space is LockSpace.WHOLE_FILE and (request.first, request.last) != (
        0,
        LOCK_END,
    ):
        raise InvalidArgument("a flock covers the whole file")
    if not 0 <= request.owner.number <= OWNER_MAX or not 0 <= request.pid <= PID_MAX:
        raise InvalidArgument("owner or process of the lock")


def conflicts(held: HeldLock, request: LockRequest) -> bool:
    """Return True if a lock keeps a request of another owner from being granted."""
    return (
        held.owner != request.owner
        and held.owner.space is request.owner.space
        and request.mode is not LockMode.UNLOCK
        and LockMode.EXCLUSIVE in (held.mode, request.mode)
        and held.first <= request.last
        and held.last >= request.first
    )


def conflict(held: Iterable[HeldLock], request: LockRequest) -> HeldLock | None:
    """Return the conflicting lock with the lowest offset; None if the request can be granted."""
    return min(
        (lock for lock in held if conflicts(lock, request)),
        key=lambda lock: (lock.first, lock.owner.number),
        default=None,
    )


def replaced(own: Sequence[HeldLock], request: LockRequest) -> list[HeldLock]:
    """Return the locks of one owner after its request was granted, in order of their offsets.

    `own` are its locks in the space of the request. The request replaces what they cover of its
    range, and splits a lock that extends beyond it. Locks of the same mode that touch become one.
    """
    first, last = request.first, request.last
    rest = []
    for lock in own:
        is_same = lock.mode is request.mode
        if is_same and lock.first <= last + 1 and lock.last >= first - 1:
            first, last = min(first, lock.first), max(last, lock.last)
        elif lock.last < request.first or lock.first > request.last:
            rest.append(lock)
        else:
            if lock.first < request.first:
                rest.append(
                    HeldLock(lock.owner, lock.mode, lock.first, request.first - 1, lock.pid)
                )
            if lock.last > request.last:
                rest.append(HeldLock(lock.owner, lock.mode, request.last + 1, lock.last, lock.pid))
    if request.mode is not LockMode.UNLOCK:
        rest.append(HeldLock(request.owner, request.mode, first, last, request.pid))
    return sorted(rest, key=lambda lock: lock.first)


def loses_before_wait(own: Sequence[HeldLock], request: LockRequest) -> bool:
    """Return True if a request gives up the owner's lock even if it is not granted.

    flock(2) converts a lock in two steps: it removes the old one, and then requests the new one.
    """
    return request.owner.space is LockSpace.WHOLE_FILE and any(
        lock.mode is not request.mode for lock in own
    )


def of_owner(held: Iterable[HeldLock], owner: LockOwner) -> list[HeldLock]:
    """Return the locks of one owner."""
    return [lock for lock in held if lock.owner == owner]
