"""Whose process a session is, so that one that is known to be dead is fenced at once.

Without that, what a killed mount kept by lease is waited for until its session expires.

What tells machines apart is no proof: clones of one snapshot share boot id, machine id, host name,
hardware addresses and process numbers, and behind a gateway their address as well; so that a number
which means no process here may be one that lives elsewhere. Only what the dead process itself has
left in this machine's memory proves that it was here: a file that it locked, whose lock is free.
(A machine that is cloned with its memory has the file twice. Both its processes are in one session
then, and ending that is right.)
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MEMORY = Path("/dev/shm")  # noqa: S108 the files have random names and are made exclusively
"""A file system in memory: everybody may make files there, only their makers remove them."""
PREFIX = "wrkfs-"
KEPT = 3600.0
"""Seconds for which the file of a killed process is left for others to find."""


class Witness:
    """A locked file that exists while this process lives, and is left behind when it is killed."""

    def __init__(self) -> None:
        """OSError: no such file can be made here."""
        _sweep()
        self._path = MEMORY / (PREFIX + secrets.token_hex(16))
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o400)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self.identity = _identity(self._path.name, self._descriptor)
            """`boot id/device and inode of the file/its name`: a copy of it is another file."""
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The process ends in peace: nobody needs to find it dead. Idempotent."""
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def is_dead(identity: str) -> bool:
    """Whether the process of a witness has surely ended, which this kernel must have seen."""
    name = identity.rpartition("/")[2]
    path = MEMORY / name
    if not name.startswith(PREFIX) or not name.removeprefix(PREFIX).isalnum():
        return False
    return _is_free(path, identity)


def _sweep() -> None:
    """Removes what processes have left that were killed long ago."""
    before = time.time() - KEPT
    for path in MEMORY.glob(PREFIX + "*"):
        try:
            if path.stat().st_mtime < before and _is_free(path):
                path.unlink()
        except OSError:
            continue


def _is_free(path: Path, identity: str | None = None) -> bool:
    """Whether a file (of this identity) is there, and nobody has it locked."""
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
    found = os.fstat(descriptor)
    return f"{boot}/{found.st_dev}:{found.st_ino}/{name}"
