"""Proof that the process of a session is dead, so that other sessions can fence it at once.

Without this proof, other sessions wait for the leases of a killed mount until its session expires.

Identifiers of machines prove nothing. Clones of one snapshot share boot id, machine id, host name,
hardware addresses and process numbers, and behind a gateway their address as well. So a process
number that is free here may belong to a live process on a clone.

The proof is a file that the process locked in this machine's memory: if the lock is free, the
process was here and has ended. A machine that is cloned with its memory has the file twice. Both
processes then share one session, and ending that session is right.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MEMORY = Path("/dev/shm")  # noqa: S108 the files have random names and are made exclusively
"""A file system in memory: any user may create files, and only their owners remove them."""
PREFIX = "wrkfs-"
RETENTION = 3600.0
"""Seconds for which the file of a killed process stays, so that others can find it."""


class Witness:
    """A locked file that exists while this process runs, and that stays if the process is
    killed."""

    def __init__(self) -> None:
        """Create and lock the file. Raises OSError if that is not possible on this machine."""
        _sweep()
        self._path = MEMORY / (PREFIX + secrets.token_hex(16))
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o400)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self.identity = _identity(self._path.name, self._descriptor)
            """`boot id/device:inode/name` of the file. A copy of the file has another identity."""
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file, because the process ends normally. Idempotent."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def is_dead(identity: str) -> bool:
    """Return True if the process of a witness ran under this kernel and has ended."""
    name = identity.rpartition("/")[2]
    path = MEMORY / name
    if not name.startswith(PREFIX) or not name.removeprefix(PREFIX).isalnum():
        return False
    return _is_free(path, identity)


def _sweep() -> None:
    """Remove files of processes that were killed more than `RETENTION` seconds ago."""
    before = time.time() - RETENTION
    for path in MEMORY.glob(PREFIX + "*"):
        try:
            if path.stat().st_mtime < before and _is_free(path):
                path.unlink()
        except OSError:
            continue


def _is_free(path: Path, identity: str | None = None) -> bool:
    """Return True if the file exists (with this identity) and no process holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if identity is not None and _identity(path.name, descriptor) != identity:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _identity(name: str, descriptor: int) -> str:
    boot = BOOT_ID.read_text(encoding="ascii").strip()
    status = os.fstat(descriptor)
    return f"{boot}/{status.st_dev}:{status.st_ino}/{name}"
