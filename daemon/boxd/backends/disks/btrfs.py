"""btrfs operations by ioctl: subvolumes, snapshots, limits, growth. Starts no processes.

Numbers and layouts are those of the kernel's `linux/btrfs.h`. Every function blocks until the
kernel is done, so callers in an event loop use a thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import uuid
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_FREE_INODE = 256
"""Inode number of the top directory of every subvolume."""

_RESIZE = 0x50009403
_SYNC = 0x9408
_SNAPSHOT_DESTROY = 0x5000940F
_INO_LOOKUP = 0xD0009412
_SNAPSHOT_CREATE = 0x50009417
_SUBVOLUME_CREATE = 0x50009418
_FS_INFO = 0x8400941F
_FS_INFO_SIZE = 1024
_QUOTA_CTL = 0xC0109428
_QGROUP_ASSIGN = 0x40189429
_QGROUP_CREATE = 0x4010942A
_QGROUP_LIMIT = 0x8030942B

_NAME_V1 = "<q4088s"
_NAME_V2 = "<QQQ32x4040s"
_ENABLE, _ENABLE_SIMPLE = 1, 4
_LIMIT = "<QQQQQQ"
_LIMIT_REFERENCED = 1
_NO_LIMIT = 2**64 - 1
_GROUP = 1 << 48
"""Groups of subvolumes have level 1."""


class Quota(Enum):
    """How a file system accounts the space of each subvolume.

    SIMPLE (kernel 6.7): bytes count for the subvolume that wrote them, until their last reference
    disappears. This costs nothing. FULL: every subvolume counts all bytes that it refers to.
    Snapshots and their removal take time that grows with the shared data.
    """

    OFF = "off"
    SIMPLE = "simple"
    FULL = "full"


def is_btrfs(path: Path) -> bool:
    """Return whether a path is on btrfs."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _FS_INFO, bytearray(_FS_INFO_SIZE))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def is_subvolume(path: Path) -> bool:
    """Return whether a path on btrfs is the top of a subvolume. False if it does not exist."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_ino == FIRST_FREE_INODE


def create_subvolume(path: Path) -> None:
    """Create an empty subvolume. Raises FileExistsError."""
    with _open(path.parent) as parent:
        fcntl.ioctl(parent, _SUBVOLUME_CREATE, _name_v2(0, path.name))


def snapshot(source: Path, target: Path) -> None:
    """Create the writable subvolume `target` with the current content of `source`.

    The content includes writes to `source` that are not on the disk yet.
    """
    with _open(source) as origin, _open(target.parent) as parent:
        fcntl.ioctl(parent, _SNAPSHOT_CREATE, _name_v2(origin, target.name))


def destroy_subvolume(path: Path) -> None:
    """Remove a subvolume with its content. The kernel frees the blocks later by itself.

    No error if it does not exist. The subvolume must contain no other subvolume.
    """
    with suppress(FileNotFoundError), _open(path.parent) as parent:
        name = os.fsencode(path.name)
        fcntl.ioctl(parent, _SNAPSHOT_DESTROY, _name_v1(name))


def subvolume_id(path: Path) -> int:
    """Return the id of the subvolume that contains a directory."""
    request = bytearray(4096)
    struct.pack_into("<QQ", request, 0, 0, FIRST_FREE_INODE)
    with _open(path) as directory:
        fcntl.ioctl(directory, _INO_LOOKUP, request)
    return int.from_bytes(request[:8], "little")


def resize(mount: Path) -> None:
    """Extend a file system on one device to the size of the device."""
    with _open(mount) as top:
        fcntl.ioctl(top, _RESIZE, _name_v1(b"1:max"))


def sync(mount: Path) -> None:
    """Write all data to the disk. Quota figures are exact afterwards."""
    with _open(mount) as top:
        fcntl.ioctl(top, _SYNC)


def quota(mount: Path) -> Quota:
    """Return whether and how the file system accounts space."""
    try:
        kind = (_facts(mount) / "qgroups" / "mode").read_text().strip()
    except FileNotFoundError:
        return Quota.FULL if (_facts(mount) / "qgroups").is_dir() else Quota.OFF
    return {"squota": Quota.SIMPLE, "qgroup": Quota.FULL}.get(kind, Quota.OFF)


def enable_quota(mount: Path) -> Quota:
    """Enable quotas: simple ones if the kernel supports them.

    On a file system with data, full quotas start with a scan in the background.
    """
    with _open(mount) as top:
        try:
            fcntl.ioctl(top, _QUOTA_CTL, bytearray(struct.pack("<QQ", _ENABLE_SIMPLE, 0)))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fcntl.ioctl(top, _QUOTA_CTL, bytearray(struct.pack("<QQ", _ENABLE, 0)))
    return quota(mount)


def limit(subvolume: Path, size: int) -> None:
    """Limit a subvolume in bytes; 0 means no limit. A write beyond it fails with EDQUOT."""
    _limit(subvolume, 0, size)  # group 0 means the subvolume itself


def limit_group(mount: Path, number: int, size: int) -> None:
    """Limit the total of all subvolumes in a group, in bytes. Creates the group if needed."""
    with _open(mount) as top, suppress(FileExistsError):
        fcntl.ioctl(top, _QGROUP_CREATE, struct.pack("<QQ", 1, _GROUP + number))
    _limit(mount, _GROUP + number, size)


def join_group(subvolume: Path, number: int) -> None:
    """Add a subvolume to a group."""
    request = struct.pack("<QQQ", 1, subvolume_id(subvolume), _GROUP + number)
    with _open(subvolume) as top, suppress(FileExistsError):
        fcntl.ioctl(top, _QGROUP_ASSIGN, request)


def forget_removed(mount: Path) -> None:
    """Delete the quota records of removed subvolumes.

    The kernel does this by itself for subvolumes that shared no data. No subvolume may be created
    meanwhile.
    """
    sync(mount)
    for group in (_facts(mount) / "qgroups").glob("0_*"):
        try:
            empty = int((group / "referenced").read_text()) == 0
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the kernel removes it already
                raise
        else:
            if empty:
                _remove_group(mount, int(group.name.removeprefix("0_")))


def _remove_group(mount: Path, group: int) -> None:
    with _open(mount) as top, suppress(OSError):  # the kernel refuses if it is still in use
        fcntl.ioctl(top, _QGROUP_CREATE, struct.pack("<QQ", 0, group))


def _limit(path: Path, group: int, size: int) -> None:
    request = struct.pack(_LIMIT, group, _LIMIT_REFERENCED, size or _NO_LIMIT, 0, 0, 0)
    with _open(path) as top:
        fcntl.ioctl(top, _QGROUP_LIMIT, request)


def used(subvolume: Path) -> int | None:
    """Return the bytes of a subvolume, including unwritten data; None without quotas."""
    group = _facts(subvolume) / "qgroups" / f"0_{subvolume_id(subvolume)}"
    try:
        return sum(int((group / name).read_text()) for name in ("referenced", "rsv_data"))
    except FileNotFoundError:
        return None


def _facts(path: Path) -> Path:
    """Return the directory of the file system in sysfs."""
    answer = bytearray(_FS_INFO_SIZE)
    with _open(path) as directory:
        fcntl.ioctl(directory, _FS_INFO, answer)
    return Path("/sys/fs/btrfs") / str(uuid.UUID(bytes=bytes(answer[16:32])))


def _name_v1(name: bytes) -> bytearray:
    return bytearray(struct.pack(_NAME_V1, 0, name))


def _name_v2(descriptor: int, name: str) -> bytearray:
    return bytearray(struct.pack(_NAME_V2, descriptor, 0, 0, os.fsencode(name)))


@contextmanager
def _open(path: Path) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
