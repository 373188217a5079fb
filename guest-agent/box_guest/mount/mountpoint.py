"""The mount point as the host sees it: stale mounts, tuning, unmounting.

No function here accesses the mounted file system, because the process that serves it would wait for
itself. /proc/self/mountinfo has the necessary information.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")
MNT_DETACH = 2
SYS_FSOPEN, SYS_FSCONFIG, SYS_FSMOUNT = 430, 431, 432
"""Numbers of system calls, the same on every architecture."""
FSOPEN_CLOEXEC = FSMOUNT_CLOEXEC = 1
FSCONFIG_CMD_CREATE = 6
MAX_STACKED = 16
"""Maximum number of stale mounts on one directory that are removed before the directory is
rejected."""
MAX_BACKGROUND = 256
"""Maximum number of requests that the kernel sends without waiting (read-ahead); its default is 12.
"""
READ_AHEAD_KB = 4096
"""Kernel read-ahead in KiB: four requests of 1 MiB in flight for one sequential reader."""

_libc = ctypes.CDLL(None, use_errno=True)


class MountpointError(Exception):
    """The directory cannot be mounted on; the text gives the reason and the remedy."""


def device(mountpoint: Path) -> str | None:
    """Return `major:minor` of the topmost mount on exactly this directory, or None."""
    number = None
    target = os.fsencode(mountpoint)
    for line in MOUNTINFO.read_bytes().splitlines():
        fields = line.split()
        if _unescape(fields[4]) == target:
            number = fields[2].decode()
    return number


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


def tune(mountpoint: Path) -> None:
    """Raise the kernel's limits for this mount, as far as this process may (root).

    Must be called after FUSE_INIT: the kernel lowers the read-ahead to the negotiated value then.
    """
    device_number = device(mountpoint)
    if device_number is None:
        raise MountpointError(f"{mountpoint}: the mount has disappeared")
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


def _unescape(field: bytes) -> bytes:
    """Decode blanks, newlines and backslashes, which mountinfo writes as octal numbers."""
    for char in (b" ", b"\t", b"\n"):
        field = field.replace(b"\\%03o" % ord(char), char)
    return field.replace(b"\\134", b"\\")
