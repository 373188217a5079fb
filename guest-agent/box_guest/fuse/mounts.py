"""FUSE mounts that another process serves.

The server gets the device's descriptor and needs no capability. Users: the daemon on the host, and
the agent of a box that has `/dev/fuse` and the capability. No function here waits for the server,
except `unmount`.

While a mount is attached, a descriptor holds the mount point: the owner of the box may replace
directories with links at any moment.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

DEVICE = Path("/dev/fuse")
OPTIONS = {"source": "wrk", "subtype": "wrkfs", "user_id": "0", "group_id": "0"}
"""Mount options with values."""
FLAGS = ("allow_other", "default_permissions")
"""Mount options without values."""
MOUNTINFO = Path("/proc/self/mountinfo")
CAP_SYS_ADMIN = 21
MAX_LAYERS = 16
"""Maximum number of stacked mounts at one place that the caller removes before it gives up."""

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
"""The same numbers on every architecture."""
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_NOSUID_NODEV = 0x2 | 0x4
_BY_DESCRIPTORS = 0x4 | 0x40
_DETACH, _NOFOLLOW = 2, 8
_PR_CAPBSET_DROP = 24

_libc = ctypes.CDLL(None, use_errno=True)


def mount(directory: Path) -> int:
    """Mount at `directory`, in place of any mount there, and return the device's descriptor.

    One process must serve the descriptor. Raises OSError; its `filename` is the device or the
    directory.
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        tree = _create(device)
        try:
            detach(directory)
            _put(tree, directory)
        finally:
            os.close(tree)
    except OSError as error:
        os.close(device)
        raise OSError(error.errno, error.strerror, str(directory)) from None
    return device


def unmount(directory: Path) -> bool:
    """Unmount the file system at `directory`. Return False if it is in use.

    Blocks until the server has written the kernel's dirty pages. Raises OSError.
    """
    while mounts_at(directory):
        if _libc.umount2(os.fsencode(directory), _NOFOLLOW) == 0:
            continue
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            return False
        if number not in (errno.ENOTCONN, errno.EIO):
            raise OSError(number, os.strerror(number), str(directory))
        detach(directory)  # the server is dead: nothing can be saved
    return True


def detach(directory: Path) -> None:
    """Detach what is mounted at `directory`, even if processes use it. Raises OSError."""
    for _ in range(MAX_LAYERS):
        if not mounts_at(directory):
            return
        _check(_libc.umount2(os.fsencode(directory), _DETACH | _NOFOLLOW))


def mounts_at(directory: Path) -> list[int]:
    """Return the ids of the mounts at exactly this directory, lowest first."""
    target = os.fsencode(directory)
    rows = [line.split() for line in MOUNTINFO.read_bytes().splitlines()]
    return [int(row[0]) for row in rows if unescaped(row[4]) == target]


def unescaped(field: bytes) -> bytes:
    """Decode blanks, newlines and backslashes, which mountinfo writes as octal numbers."""
    for char in (b" ", b"\t", b"\n"):
        field = field.replace(b"\\%03o" % ord(char), char)
    return field.replace(b"\\134", b"\\")


def drop_mount_right() -> None:
    """Drop CAP_SYS_ADMIN from the bounding set: this process may mount, but its children may not.

    Does nothing without the capability.
    """
    _libc.prctl(_PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)


def _create(device: int) -> int:
    """Create the file system without attaching it to a directory."""
    context = _check(_call(_FSOPEN, b"fuse", _CLOEXEC))
    try:
        for key, value in {**OPTIONS, "fd": str(device), "rootmode": "40000"}.items():
            _check(_call(_FSCONFIG, context, _SET_STRING, key.encode(), value.encode(), 0))
        for flag in FLAGS:
            _check(_call(_FSCONFIG, context, _SET_FLAG, flag.encode(), None, 0))
        _check(_call(_FSCONFIG, context, _CREATE, None, None, 0))
        return _check(_call(_FSMOUNT, context, _CLOEXEC, _NOSUID_NODEV))
    finally:
        os.close(context)


def _put(tree: int, directory: Path) -> None:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        place = os.open(directory, flags)
    except FileNotFoundError:
        directory.mkdir(mode=0o755)
        place = os.open(directory, flags)
    try:
        _check(_call(_MOVE_MOUNT, tree, b"", place, b"", _BY_DESCRIPTORS))
    finally:
        os.close(place)


def _call(number: int, *arguments: int | bytes | None) -> int:
    values = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    return int(_libc.syscall(ctypes.c_long(number), *values))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
