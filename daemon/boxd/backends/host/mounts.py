"""Mounts on the host, and the contents of mount tables."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from functools import cache
from pathlib import Path

from boxd.errors import Unavailable

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, _NOATIME, BIND = 1, 2, 4, 8, 32, 1024, 4096
_PRIVATE = 1 << 18
"""Flags of mount(2)."""
_MOUNTINFO = Path("/proc/self/mountinfo")
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_libc = ctypes.CDLL(None, use_errno=True)


def mount_device(device: Path, directory: Path, kind: str, options: str) -> None:
    """Mount a block device. Raises Unavailable with the kernel's error."""
    flags = NOSUID | NODEV | _NOATIME
    number = mount(str(device), directory, kind, flags, options)
    if number != 0:
        raise Unavailable(f"{directory} cannot be mounted as {kind}: {os.strerror(number)}")


def mount_memory(directory: Path, flags: int, options: str) -> None:
    """Mount a tmpfs, or change it with REMOUNT. Raises Unavailable with the kernel's error."""
    number = mount("tmpfs", directory, "tmpfs", flags, options)
    if number != 0:
        raise Unavailable(f"{directory} cannot be mounted as tmpfs: {os.strerror(number)}")


def bind(source: Path, target: Path) -> None:
    """Mount a file or directory at an existing one. Raises OSError."""
    number = mount(str(source), target, "none", BIND)
    if number != 0:
        raise OSError(number, os.strerror(number), str(target))


def unmount(directory: Path, *, lazily: bool) -> None:
    """Unmount everything at a directory. With `lazily`, users of the mounts may finish first."""
    while is_mounted(directory):
        flags = _MNT_DETACH if lazily else 0
        if _libc.umount2(os.fsencode(directory), ctypes.c_int(flags)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))


def detach(directory: Path) -> None:
    """Unmount the topmost mount at a directory, even if its server is dead or hangs.

    Raises OSError.
    """
    flags = ctypes.c_int(_MNT_DETACH | _UMOUNT_NOFOLLOW)
    if _libc.umount2(os.fsencode(directory), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(directory))


def unmount_everywhere(root: Path) -> None:
    """Unmount the root of a box here and in every other mount namespace; remove its directory.

    `unshare -m` copies all mounts of the host, and an overlay in such a copy keeps its layer busy.
    When a directory is removed, the kernel detaches its mounts in every namespace, even where the
    tree above it is bind-mounted. No error if the directory does not exist or contains files.
    """
    unmount(root, lazily=True)
    try:
        root.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


def is_mounted(directory: Path) -> bool:
    """Return whether something is mounted at a directory. False if it does not exist."""
    return os.path.ismount(directory)


def device_at(mountinfo: Path, directory: str) -> str | None:
    """Return the device number (`major:minor`) of the topmost mount at a directory, or None.

    The number is read from a mountinfo file, because a call into a mount with a dead server may not
    return.
    """
    devices = [row[2] for row in rows(table(mountinfo)) if unescape(row[4]) == directory]
    return devices[-1] if devices else None


def kind_at(path: Path, mountinfo: Path) -> str:
    """Return the type of a path's file system from a mountinfo file, or "" if not listed.

    btrfs subvolumes have device numbers that no table lists.
    """
    number = path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    kinds = (row[row.index("-") + 1] for row in rows(table(mountinfo)) if row[2] == device)
    return next(kinds, "")


def table(mountinfo: Path) -> str:
    """Return the text of a mountinfo file. Names in it may be any bytes, which a box chooses."""
    return os.fsdecode(mountinfo.read_bytes())


def rows(text: str) -> list[list[str]]:
    """Return the fields of each line of a mountinfo file.

    Only a space separates fields and only a line feed separates lines. Names may contain other
    white space.
    """
    return [line.split(" ") for line in text.split("\n") if line]


def unescape(field: str) -> str:
    """Decode a path of a mountinfo file, in which white space and backslashes are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mount_points(mountinfo: Path) -> list[str]:
    """Return all mount points, in the order of mounting."""
    return [unescape(row[4]) for row in rows(table(mountinfo))]


@cache
def apart() -> tuple[str, ...]:
    """Return a prefix for a command line that starts a box: a mount namespace without propagation.

    systemd shares the mounts of the host. The devices that runc then binds into a box would follow
    the host's, and CRIU could not restore them. Returns nothing if the host shares no devices. The
    table of mounts is long on a host with many boxes, so it is read once.
    """
    devices = [row for row in rows(table(_MOUNTINFO)) if row[4] in ("/", "/dev")]
    is_shared = any(field.startswith("shared:") for row in devices for field in row)
    return ("unshare", "--mount", "--propagation", "private") if is_shared else ()


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> int:
    """Call mount(2). Return 0, or the error number.

    A new mount is private: systemd shares those of the host, and CRIU cannot restore a box from a
    shared mount.
    """
    number = _mount(source, target, kind, flags, options)
    if number == 0 and not flags & REMOUNT:
        number = _mount("none", target, "none", _PRIVATE)
    return number


def make_private(target: Path) -> None:
    """Let a mount follow no other one. Raises OSError."""
    number = _mount("none", target, "none", _PRIVATE)
    if number != 0:
        raise OSError(number, os.strerror(number), str(target))


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> int:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(options),
    )
    return ctypes.get_errno() if result != 0 else 0
