"""Mounts on the host that mask kernel files and directories in boxes.

Two small tmpfs of the installation contain the objects that a box sees at masked paths: one empty
directory for each masked directory, and one null device for all masked files. Both superblocks are
read-only, so a box can change nothing there, regardless of the options of its own mounts. With the
null device is one for FUSE: a box in a user namespace cannot create its own.

The host's mounts have no other options: a mount in a user namespace cannot lose an option of the
host's mount, and runc's masks have none.

Each masked directory has a separate source. CRIU does not set options on a bind mount if an earlier
bind mount of the same box has the same source.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.backends.host import mounts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_DIRECTORIES, _FILES = "directories", "files"
_NULL, _FUSE = "null", "fuse"
_DEVICES = {_NULL: os.makedev(1, 3), _FUSE: os.makedev(10, 229)}
_SIZE = "size=4k,mode=755"


def directory(top: Path, path: str) -> Path:
    """Return the empty directory that masks the kernel's directory `path`."""
    return top / _DIRECTORIES / path.strip("/").replace("/", "-")


def null(top: Path) -> Path:
    """Return the null device that masks kernel files."""
    return top / _FILES / _NULL


def fuse(top: Path) -> Path:
    """Return the FUSE device for boxes that mount their drives themselves."""
    return top / _FILES / _FUSE


def setup(top: Path, paths: Iterable[str]) -> None:
    """Mount the sources of `paths` below `top`, unless complete. Raises Unavailable."""
    directories = [directory(top, path) for path in paths]
    if not _are_complete(top / _DIRECTORIES, directories):
        _mount_directories(top / _DIRECTORIES, directories)
    if not _are_complete(top / _FILES, [null(top), fuse(top)]):
        _mount_devices(top)


def remove(top: Path) -> None:
    """Unmount and remove the sources of `setup`. Mounts in running boxes are not affected."""
    for place in (top / _DIRECTORIES, top / _FILES, top):
        mounts.unmount(place, lazily=True)
        with suppress(FileNotFoundError):
            place.rmdir()


def _are_complete(place: Path, paths: list[Path]) -> bool:
    if not mounts.is_mounted(place) or not os.statvfs(place).f_flag & os.ST_RDONLY:
        return False
    return all(path.exists() for path in paths)


def _mount_directories(place: Path, directories: list[Path]) -> None:
    _mount_empty(place)
    for path in directories:
        path.mkdir(mode=0o555)
    mounts.mount_memory(place, mounts.REMOUNT | mounts.RDONLY, _SIZE)


def _mount_devices(top: Path) -> None:
    place = top / _FILES
    _mount_empty(place)
    for name, number in _DEVICES.items():
        os.mknod(place / name, stat.S_IFCHR | 0o666, number)
        (place / name).chmod(0o666)
    mounts.mount_memory(place, mounts.REMOUNT | mounts.RDONLY, _SIZE)
    # A new box may see this null device through a writable mount; only the superblock is read-only.
    mounts.mount_memory(place, mounts.REMOUNT | mounts.BIND, "")


def _mount_empty(place: Path) -> None:
    """Mount an empty tmpfs, in place of the rest of an interrupted or older setup."""
    place.mkdir(mode=0o755, parents=True, exist_ok=True)
    mounts.unmount(place, lazily=True)
    mounts.mount_memory(place, 0, _SIZE)
