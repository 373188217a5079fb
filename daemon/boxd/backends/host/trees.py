"""Copies and removes directory trees that boxes have written. Their content is untrusted.

The functions open only the top by a path. Every further step goes from one open directory to the
next, and follows no symbolic link. Deep trees use no more descriptors or stack than flat ones, so a
box cannot make a tree that the host is unable to remove. A tree must not change while it is copied:
the box is frozen or stopped. All functions block, so callers use a thread.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_NO_SHARING = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY}
_libc = ctypes.CDLL(None, use_errno=True)


def remove_tree(directory: Path) -> None:
    """Remove a directory with its content. No error if it does not exist."""
    try:
        here = os.open(directory, _DIRECTORY)
    except FileNotFoundError:
        return
    entered: list[str] = []
    try:
        waiting = [_remove_files(here)]
        while True:
            if waiting[-1]:
                entered.append(waiting[-1].pop())
                here = _step(here, entered[-1])
                waiting.append(_remove_files(here))
                continue
            waiting.pop()
            if not waiting:
                break
            here = _step(here, "..")
            os.rmdir(entered.pop(), dir_fd=here)
    finally:
        os.close(here)
    directory.rmdir()


def _remove_files(here: int) -> list[str]:
    """Remove everything except directories that are not empty. Return the names of these."""
    with os.scandir(here) as entries:
        items = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    full = []
    for name, is_directory in items:
        if not is_directory:
            os.unlink(name, dir_fd=here)
            continue
        try:
            os.rmdir(name, dir_fd=here)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            full.append(name)
    return full


def remove_attribute(directory: Path, attribute: str) -> None:
    """Remove an extended attribute from a directory and everything below it."""
    here = os.open(directory, _DIRECTORY)
    try:
        waiting = [_strip(here, attribute)]
        while waiting:
            if waiting[-1]:
                here = _step(here, waiting[-1].pop())
                waiting.append(_strip(here, attribute))
                continue
            waiting.pop()
            if waiting:
                here = _step(here, "..")
    finally:
        os.close(here)


def _strip(here: int, attribute: str) -> list[str]:
    """Remove the attribute from a directory and the files in it.

    Return the names of its directories.
    """
    with os.scandir(here) as entries:
        items = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    places = [f"/proc/self/fd/{here}/{name}" for name, is_directory in items if not is_directory]
    for place in (*places, f"/proc/self/fd/{here}/."):
        try:
            os.removexattr(place, attribute, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
    return [name for name, is_directory in items if is_directory]


def copy_tree(source: Path, target: Path) -> None:
    """Copy the directory `source` to `target`, and sync the copy to the disk.

    The copy has the same owners, modes, times, extended attributes (also those of an overlay's
    layer), hard links, holes, device nodes (an overlay's whiteouts) and symbolic links. Blocks are
    shared if the file system supports it. `target` must not exist. After a failure it is
    incomplete. During the copy there is a directory `.NAME.links` next to it.
    """
    links = target.with_name(f".{target.name}.links")
    remove_tree(links)
    links.mkdir(mode=0o700)
    target.mkdir(mode=0o700)
    walk = _Walk(*(os.open(path, _DIRECTORY) for path in (source, target, links)))
    try:
        walk.run()
        _write_out(walk.links)
    finally:
        walk.close()
    remove_tree(links)


class _Walk:
    """A running copy. Its position in the source and in the copy are open directories."""

    def __init__(self, origin: int, copy: int, links: int) -> None:
        self.origin = origin
        self.copy = copy
        self.links = links
        """Directory of files with several names, named by their inode number in the source."""

    def run(self) -> None:
        """Copy everything below the top, and the attributes of the top."""
        waiting = [self._copy_files()]
        while waiting:
            if waiting[-1]:
                self._enter(waiting[-1].pop())
                waiting.append(self._copy_files())
                continue
            _copy_attributes(self.origin, self.copy)
            waiting.pop()
            if waiting:
                self.origin = _step(self.origin, "..")
                self.copy = _step(self.copy, "..")

    def close(self) -> None:
        """Close the directories."""
        for descriptor in (self.origin, self.copy, self.links):
            os.close(descriptor)

    def _enter(self, name: str) -> None:
        os.mkdir(name, 0o700, dir_fd=self.copy)
        self.origin = _step(self.origin, name)
        self.copy = _step(self.copy, name)

    def _copy_files(self) -> list[str]:
        """Copy everything here except directories. Return the names of the directories."""
        with os.scandir(self.origin) as entries:
            names = [entry.name for entry in entries]
        directories = []
        for name in names:
            status = os.stat(name, dir_fd=self.origin, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                directories.append(name)
            elif status.st_nlink > 1:
                self._copy_linked(name, status)
            else:
                self._copy_one(name, status, self.copy, name)
        return directories

    def _copy_linked(self, name: str, status: os.stat_result) -> None:
        number = str(status.st_ino)
        try:
            os.stat(number, dir_fd=self.links, follow_symlinks=False)
        except FileNotFoundError:
            self._copy_one(name, status, self.links, number)
        os.link(number, name, src_dir_fd=self.links, dst_dir_fd=self.copy, follow_symlinks=False)

    def _copy_one(self, name: str, status: os.stat_result, into: int, new: str) -> None:
        if stat.S_ISREG(status.st_mode):
            origin = os.open(name, _READ, dir_fd=self.origin)
            try:
                copy = os.open(new, _WRITE, 0o600, dir_fd=into)
                try:
                    _copy_data(origin, copy, status.st_size)
                    _copy_attributes(origin, copy)
                finally:
                    os.close(copy)
            finally:
                os.close(origin)
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=self.origin), new, dir_fd=into)
        else:
            os.mknod(new, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev, dir_fd=into)
        os.chown(new, status.st_uid, status.st_gid, dir_fd=into, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            os.chmod(new, stat.S_IMODE(status.st_mode), dir_fd=into)
        # These calls take no directory descriptor. They do not follow the last part of the path.
        old_path, new_path = f"/proc/self/fd/{self.origin}/{name}", f"/proc/self/fd/{into}/{new}"
        for attribute in os.listxattr(old_path, follow_symlinks=False):
            value = os.getxattr(old_path, attribute, follow_symlinks=False)
            os.setxattr(new_path, attribute, value, follow_symlinks=False)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(new, ns=times, dir_fd=into, follow_symlinks=False)


def _step(here: int, name: str) -> int:
    """Open a directory relative to another, and close the other."""
    there = os.open(name, _DIRECTORY, dir_fd=here)
    os.close(here)
    return there


def _copy_attributes(origin: int, copy: int) -> None:
    """Copy attributes, owner first: a change of owner clears set-uid bits and capabilities."""
    status = os.fstat(origin)
    os.fchown(copy, status.st_uid, status.st_gid)
    os.fchmod(copy, stat.S_IMODE(status.st_mode))
    for attribute in os.listxattr(origin):
        os.setxattr(copy, attribute, os.getxattr(origin, attribute))
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_data(origin: int, copy: int, size: int) -> None:
    if size == 0:
        return
    try:
        fcntl.ioctl(copy, _FICLONE, origin)
    except OSError as error:
        if error.errno not in _NO_SHARING:
            raise
    else:
        return
    os.ftruncate(copy, size)
    place = 0
    while place < size:
        try:
            place = os.lseek(origin, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            raise
        end = os.lseek(origin, place, os.SEEK_HOLE)
        while place < end:
            copied = os.copy_file_range(origin, copy, end - place, place, place)
            if copied == 0:
                raise OSError(errno.EIO, "a file became shorter while it was copied")
            place += copied


def _write_out(descriptor: int) -> None:
    """Sync the whole file system of a descriptor to the disk."""
    if _libc.syncfs(ctypes.c_int(descriptor)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
