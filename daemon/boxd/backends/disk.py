"""A box's disk: an overlay of the image's root (never written) and the box's own layer.

The layer is a directory here; `Disk` is what a layer with a size limit (a btrfs subvolume with a
qgroup) implements as well.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from boxd.backends.hostnames import BoxPaths

_MS_NODEV = 4
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
_OVERLAY_OPTIONS = "index=on,nfs_export=on,metacopy=off,redirect_dir=off"
"""A layer made by a box must not be able to name files outside itself. The handle of a file names
it (`nfs_export`, which needs the index): so CRIU finds at once what a process watches."""
_ORIGIN = "trusted.overlay.origin"


class Disk(Protocol):
    """Makes, mounts and removes the disks of boxes. Every method is idempotent."""

    def limits_size(self) -> bool:
        """Whether a box that fills its disk fails alone."""
        ...

    async def create(self, paths: BoxPaths) -> None:
        """Makes an empty layer."""
        ...

    async def mount(self, paths: BoxPaths, rootfs: Path) -> None:
        """Mounts the root at `paths.root`. Raises Unavailable with the kernel's words."""
        ...

    async def unmount(self, paths: BoxPaths) -> None:
        """Unmounts it. The layer stays."""
        ...

    async def remove(self, paths: BoxPaths) -> None:
        """Removes the layer, with all that is in it."""
        ...

    async def used(self, paths: BoxPaths) -> int:
        """Bytes that the layer takes on the host's disk."""
        ...


class PlainDisk:
    """Layers are directories: nothing caps their size but the host's disk."""

    def limits_size(self) -> bool:
        """No."""
        return False

    async def create(self, paths: BoxPaths) -> None:
        """Upper and work directories beside each other, and the mount point."""
        for directory in (paths.layer, _upper(paths), _work(paths), paths.root):
            directory.mkdir(mode=0o755, exist_ok=True)

    async def mount(self, paths: BoxPaths, rootfs: Path) -> None:
        """Device nodes do not work on it (`nodev`); the box's own /dev is another mount."""
        if is_mounted(paths.root):
            return
        number = _mount(paths, rootfs)
        if number == errno.ESTALE:  # image or layer is a copy: its handles name other files
            await asyncio.to_thread(_forget_handles, paths)
            number = _mount(paths, rootfs)
        if number != 0:
            raise Unavailable(
                f"the root of the box cannot be mounted: {os.strerror(number)}; "
                "overlay needs a kernel with overlayfs and a state directory that is not on one"
            )

    async def unmount(self, paths: BoxPaths) -> None:
        """Lazily: a reader on the host must not keep a box from being removed."""
        while is_mounted(paths.root):
            if _libc.umount2(os.fsencode(paths.root), ctypes.c_int(_MNT_DETACH)) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(paths.root))

    async def remove(self, paths: BoxPaths) -> None:
        """Symbolic links in it are removed, never followed."""
        await asyncio.to_thread(remove_tree, paths.layer)
        with suppress(FileNotFoundError):
            paths.root.rmdir()

    async def used(self, paths: BoxPaths) -> int:
        """Allocated blocks, counted file by file."""
        return await asyncio.to_thread(_allocated, _upper(paths))


def is_mounted(directory: Path) -> bool:
    """Whether something is mounted at a directory. False when there is no such directory."""
    return os.path.ismount(directory)


def device_at(mountinfo: Path, directory: str) -> str | None:
    """Device number (`major:minor`) of the topmost mount at a directory; None if nothing is.

    Read from a mountinfo file, because asking a mount whose server is dead or hangs does not end.
    """
    found = None
    for line in mountinfo.read_text().splitlines():
        fields = line.split()
        if unescape(fields[4]) == directory:
            found = fields[2]
    return found


def unescape(field: str) -> str:
    """A path as mountinfo writes it: blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def remove_tree(directory: Path) -> None:
    """Removes a directory with its content. No error if it is absent."""
    if directory.exists():
        shutil.rmtree(directory)


def write_beneath(root: Path, name: str, content: str) -> bool:
    """Writes `root`/etc/`name` although the tree below `root` is the box's and may be hostile.

    Nothing the box planted is followed: `etc` must be a real directory, and the file is replaced,
    not opened. Returns False when the box has made something else of `etc`.
    """
    top = os.open(root, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(FileExistsError):
            os.mkdir("etc", 0o755, dir_fd=top)
        try:
            etc = os.open("etc", os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                return False
            raise
    finally:
        os.close(top)
    try:
        return _replace(etc, name, content)
    finally:
        os.close(etc)


def _replace(directory: int, name: str, content: str) -> bool:
    temporary = f".{name}.boxd"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o644, dir_fd=directory), "w") as file:
        file.write(content)
    try:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except IsADirectoryError:
        os.unlink(temporary, dir_fd=directory)
        return False
    return True


def _mount(paths: BoxPaths, rootfs: Path) -> int:
    """The kernel's error number; 0 when it is mounted."""
    options = (
        f"lowerdir={_escape(rootfs, ':')},upperdir={_escape(_upper(paths))},"
        f"workdir={_escape(_work(paths))},{_OVERLAY_OPTIONS}"
    )
    result = _libc.mount(
        b"overlay",
        os.fsencode(paths.root),
        b"overlay",
        ctypes.c_ulong(_MS_NODEV),
        options.encode(),
    )
    return ctypes.get_errno() if result != 0 else 0


def _forget_handles(paths: BoxPaths) -> None:
    """Takes away what a layer knows of the image's files by their handles."""
    remove_tree(_work(paths))
    _work(paths).mkdir(mode=0o755)
    with suppress(OSError):
        os.removexattr(_upper(paths), _ORIGIN)


def _upper(paths: BoxPaths) -> Path:
    return paths.layer / "upper"


def _work(paths: BoxPaths) -> Path:
    return paths.layer / "work"


def upper(paths: BoxPaths) -> Path:
    """What the box has written."""
    return _upper(paths)


def _escape(path: Path, more: str = "") -> str:
    """Overlay splits its options at commas, and lower directories at colons."""
    text = str(path).replace("\\", "\\\\")
    for character in "," + more:
        text = text.replace(character, f"\\{character}")
    return text


def _allocated(directory: Path) -> int:
    total = 0
    stack = [directory]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except FileNotFoundError:
            continue  # removed meanwhile
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                stack.append(Path(entry.path))
    return total
