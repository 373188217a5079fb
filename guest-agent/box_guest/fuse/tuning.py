"""The kernel's limits for one FUSE mount. Only root may change them.

No function here accesses the mounted file system, because the process that serves it would wait for
itself. /proc/self/mountinfo has the necessary information.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from box_guest.fuse.mounts import MOUNTINFO, unescaped

SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432
"""Numbers of system calls, the same on every architecture."""
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_CMD_CREATE = 6
MAX_BACKGROUND = 256
"""Maximum number of requests that the kernel sends without waiting (read-ahead); its default is 12.
"""
READ_AHEAD_KB = 4096
"""Kernel read-ahead in KiB: four requests of 1 MiB in flight for one sequential reader."""

_libc = ctypes.CDLL(None, use_errno=True)


def device(mountpoint: Path) -> str | None:
    """Return `major:minor` of the topmost mount on exactly this directory, or None."""
    number = None
    target = os.fsencode(mountpoint)
    for line in MOUNTINFO.read_bytes().splitlines():
        fields = line.split()
        if unescaped(fields[4]) == target:
            number = fields[2].decode()
    return number


def tune(mountpoint: Path) -> None:
    """Raise the kernel's limits for this mount, as far as this process may (root).

    Must be called after FUSE_INIT: the kernel lowers the read-ahead to the negotiated value then.
    Raises OSError.
    """
    device_number = device(mountpoint)
    if device_number is None:
        raise FileNotFoundError(errno.ENOENT, "the mount has disappeared", str(mountpoint))
    read_ahead = Path("/sys/class/bdi") / device_number / "read_ahead_kb"
    if os.access(read_ahead, os.W_OK):
        read_ahead.write_text(str(READ_AHEAD_KB), encoding="ascii")
    control = control_files()
    if control is None:
        return
    try:
        connection = os.open(
            device_number.partition(":")[2], os.O_PATH | os.O_DIRECTORY, dir_fd=control
        )
        try:
            _write(connection, "max_background", MAX_BACKGROUND)
            _write(connection, "congestion_threshold", MAX_BACKGROUND * 3 // 4)
        finally:
            os.close(connection)
    finally:
        os.close(control)


def control_files() -> int | None:
    """Return a descriptor of a detached fusectl, because not every host mounts it.

    Returns None without access.
    """
    context = _libc.syscall(SYS_FSOPEN, b"fusectl", FSOPEN_CLOEXEC)
    if context < 0:
        return None
    try:
        if _libc.syscall(SYS_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0) < 0:
            return None
        root = _libc.syscall(SYS_FSMOUNT, context, FSMOUNT_CLOEXEC, 0)
        return None if root < 0 else int(root)
    finally:
        os.close(context)


def _write(directory: int, name: str, value: int) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
