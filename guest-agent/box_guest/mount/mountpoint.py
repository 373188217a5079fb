"""The mount point as the host sees it: stale mounts, unmounting.

No function here accesses the mounted file system, because the process that serves it would wait for
itself. /proc/self/mountinfo has the necessary information.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from box_guest.fuse.tuning import device

if TYPE_CHECKING:
    from pathlib import Path

MNT_DETACH = 2
MAX_STACKED = 16
"""Maximum number of stale mounts on one directory that are removed before the directory is
rejected."""

_libc = ctypes.CDLL(None, use_errno=True)


class MountpointError(Exception):
    """The directory cannot be mounted on; the text gives the reason and the remedy."""


def prepare(mountpoint: Path) -> Path:
    """Create the directory, remove dead mounts from it, and return its real path.

    Raises MountpointError if a live mount is there, or if it is not a directory.
    """
    path = mountpoint.absolute()
    for _ in range(MAX_STACKED):
        try:
            path.mkdir(parents=True, exist_ok=True)
            path = path.resolve(strict=True)
            # The kernel may have cached the root's attributes, but statvfs always asks the process.
            os.statvfs(path)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EIO, errno.EEXIST):
                raise MountpointError(f"{path}: {error.strerror}") from None
            if device(path) is None:
                raise MountpointError(f"{path}: not a directory") from None
            unmount(path, lazy=True)
            continue
        if device(path) is not None:
            raise MountpointError(
                f"{path}: something is already mounted here; unmount it first: umount {path}"
            )
        return path
    raise MountpointError(f"{path}: more than {MAX_STACKED} dead mounts are stacked here")


def unmount(mountpoint: Path, *, lazy: bool) -> None:
    """Call umount2(2). Raises OSError (EBUSY while it is in use, unless lazy)."""
    flags = MNT_DETACH if lazy else 0
    if _libc.umount2(os.fsencode(mountpoint), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(mountpoint))
