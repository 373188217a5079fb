"""Mounts made by the agent itself: a FUSE file system whose server is another process.

Only the agent of a box may mount, and only where its box was given `/dev/fuse` and the right. The
server gets the device's descriptor and needs no right at all. Nothing here waits for it, but for
`unmount`.

The place is held by a descriptor while the mount is put there: whoever owns the box may replace
directories by links at any moment.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from box_guest.errors import DriveFailed

DEVICE = Path("/dev/fuse")
OPTIONS = {"source": "wrk", "subtype": "wrkfs", "user_id": "0", "group_id": "0"}
FLAGS = ("allow_other", "default_permissions")
MOUNTINFO = Path("/proc/self/mountinfo")
CAP_SYS_ADMIN = 21
MAX_LAYERS = 16
"""Mounts that can lie upon each other at one place before we give up."""

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
    """Mounts at the directory, in the place of what is mounted there; returns the descriptor of
    the device, which one process has to serve. Raises DriveFailed."""
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DriveFailed(
            f"the box cannot mount its drive: {DEVICE}: {error.strerror}; it was started before "
            "the service let boxes mount: stop it once, or make it anew"
        ) from None
    try:
        tree = _made(device)
        try:
            detach(directory)
            _put(tree, directory)
        finally:
            os.close(tree)
    except OSError as error:
        os.close(device)
        raise DriveFailed(f"the drive cannot be mounted at {directory}: {error.strerror}") from None
    return device


def unmount(directory: Path) -> bool:
    """Takes away what is mounted at the directory; False when it is in use. Blocks until its
    server has written what the kernel still had. Raises OSError."""
    while mounts_at(directory):
        if _libc.umount2(os.fsencode(directory), _NOFOLLOW) == 0:
            continue
        number = ctypes.get_errno()
        if number == errno.EBUSY:
            return False
        if number not in (errno.ENOTCONN, errno.EIO):
            raise OSError(number, os.strerror(number), str(directory))
        detach(directory)  # its server is dead: nothing can be kept
    return True


def detach(directory: Path) -> None:
    """Takes away what is mounted at the directory, also from those who use it. Raises OSError."""
    for _ in range(MAX_LAYERS):
        if not mounts_at(directory):
            return
        _check(_libc.umount2(os.fsencode(directory), _DETACH | _NOFOLLOW))


def mounts_at(directory: Path) -> list[int]:
    """Ids of the mounts on exactly this directory, lowest first."""
    wanted = os.fsencode(directory)
    rows = [line.split() for line in MOUNTINFO.read_bytes().splitlines()]
    return [int(row[0]) for row in rows if row[4] == wanted]


def keep_right() -> None:
    """The calling process may mount, and nothing that it starts. Without the right: no change."""
    _libc.prctl(_PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)


def _made(device: int) -> int:
    """The file system, mounted nowhere yet."""
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
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *passed))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
