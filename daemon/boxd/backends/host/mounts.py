"""Mounts on the host: the overlay roots of boxes, and the contents of mount tables."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from boxd.errors import BoxdError, DiskFull, RootHeld, Unavailable

_PROC = Path("/proc")
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, _NOATIME, BIND = 1, 2, 4, 8, 32, 1024, 4096
"""Flags of mount(2)."""
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)
_OVERLAY_OPTIONS = "index=on,nfs_export=on,metacopy=off,redirect_dir=off,xino=on"
"""Options of the overlays. A layer written by a box must not be able to name files outside itself.
File handles must decode, or a box that watches files cannot be suspended. A file must keep its
inode number when it is first written. All files must show one device, regardless of the place of
the layer."""
_BUSY_TIMEOUT = 10.0
"""Seconds for the kernel to release an unmounted root; a layer can be mounted only once."""
_POLL = 0.02
_OVERLAY_MAGIC = 0x794C7630
_STATFS_BYTES = 256
"""More than the size of `struct statfs`; its first long is the type of the file system."""
_REMEDY = "overlay needs a kernel with overlayfs and a state directory that is not on one"
_REMEDIES = {
    errno.EBUSY: "a process of the host still uses its files, and the log of boxd names the"
    " process; try again when it has ended",
    errno.ENOSPC: "there is no space for what the kernel writes during a mount",
    errno.EDQUOT: "there is no space for what the kernel writes during a mount",
}


class LayerOfAnother(Unavailable):
    """The upper or the work directory belongs to another image, or is a copy."""


_KINDS = {
    errno.EBUSY: RootHeld,
    errno.ESTALE: LayerOfAnother,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
}


async def mount_overlay(root: Path, lower: Path, upper: Path, work: Path) -> None:
    """Mount an overlay at `root`, unless something is mounted there. Creates the directory.

    Device nodes are disabled on it. Raises DiskFull if there is no space for the kernel's own
    writes during a mount, LayerOfAnother, RootHeld, or Unavailable with the kernel's error.
    """
    if is_mounted(root):
        return
    _renew_mount_point(root)
    options = (
        f"lowerdir={_escape(lower, ':')},upperdir={_escape(upper)},"
        f"workdir={_escape(work)},{_OVERLAY_OPTIONS}"
    )
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        number = _mount("overlay", root, "overlay", NODEV, options)
        if number == 0 and os.statvfs(root).f_flag & os.ST_RDONLY:
            unmount(root, lazily=False)
            number = errno.ENOSPC  # the reason for a read-only mount
        if number == 0:
            return
        if number != errno.EBUSY or time.monotonic() > deadline:
            break
        await asyncio.sleep(_POLL)
    if number == errno.EBUSY:
        # Only the operator sees the host's processes; the operator has to end this one.
        holders = await asyncio.to_thread(_holders, upper)
        _log.warning("the root of a box, %s, is still used by %s", root, holders)
    raise _KINDS.get(number, Unavailable)(
        f"the root of the box cannot be mounted: {os.strerror(number)}; "
        f"{_REMEDIES.get(number, _REMEDY)}"
    )


def mount_device(device: Path, directory: Path, kind: str, options: str) -> None:
    """Mount a block device. Raises Unavailable with the kernel's error."""
    flags = NOSUID | NODEV | _NOATIME
    number = _mount(str(device), directory, kind, flags, options)
    if number != 0:
        raise Unavailable(f"{directory} cannot be mounted as {kind}: {os.strerror(number)}")


def mount_memory(directory: Path, flags: int, options: str) -> None:
    """Mount a tmpfs, or change it with REMOUNT. Raises Unavailable with the kernel's error."""
    number = _mount("tmpfs", directory, "tmpfs", flags, options)
    if number != 0:
        raise Unavailable(f"{directory} cannot be mounted as tmpfs: {os.strerror(number)}")


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


def _renew_mount_point(root: Path) -> None:
    """Recreate the directory, so that no mount of an earlier release remains on it."""
    unmount_everywhere(root)
    root.mkdir(mode=0o755, parents=True, exist_ok=True)


async def require_unused(root: Path, lower: Path, upper: Path, work: Path) -> None:
    """Wait until no process uses the overlay that was mounted at `root`. Raises RootHeld.

    The only way to find out is to mount the layer again: the kernel refuses it while it is in use.
    """
    try:
        await mount_overlay(root, lower, upper, work)
    except RootHeld:
        raise RootHeld(
            f"the box was stopped, but cannot start yet: {_REMEDIES[errno.EBUSY]}"
        ) from None
    except BoxdError:
        # The kernel checks for users of the layer first, so nothing uses it. The next start reports
        # any other problem, and gives a full layer more space.
        return
    finally:
        await asyncio.to_thread(unmount_everywhere, root)


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


def _holders(upper: Path) -> str:
    """Name the processes that use an overlay with this layer, by a mount or by open files."""
    namespaces: set[str] = set()
    holders = []
    for number in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        process = _PROC / str(number)
        with suppress(OSError):  # the process has ended
            name = f"process {number} ({(process / 'comm').read_text(errors='replace').strip()})"
            mounted = rows(table(process / "mountinfo"))
            namespace = os.readlink(process / "ns/mnt")
            if namespace not in namespaces:
                namespaces.add(namespace)
                holders += [f"{name} at {place}" for place in _places_of_layer(mounted, upper)]
            if _uses_unmounted_overlay(process, {row[0] for row in mounted}):
                holders.append(name)
    return ", ".join(holders) or "no process that could be found"


def _places_of_layer(mounted: list[list[str]], upper: Path) -> list[str]:
    """Return the mount points of overlays with this layer in a mount table."""
    return [
        unescape(row[4])
        for row in mounted
        if f"upperdir={upper}" in map(unescape, row[-1].split(","))
    ]


def _uses_unmounted_overlay(process: Path, mount_ids: set[str]) -> bool:
    """Return whether a process has open files or a directory on an overlay that is unmounted."""
    for link in (process / "cwd", process / "root", *(process / "fd").iterdir()):
        try:
            descriptor = os.open(link, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # closed in the meantime, or a kernel thread, which has none
        try:
            if _is_overlay(descriptor) and _mount_id(descriptor) not in mount_ids:
                return True
        finally:
            os.close(descriptor)
    return False


def _is_overlay(descriptor: int) -> bool:
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(ctypes.c_int(descriptor), status) != 0:
        return False
    return ctypes.c_long.from_buffer(status).value == _OVERLAY_MAGIC


def _mount_id(descriptor: int) -> str:
    fields = (_PROC / f"self/fdinfo/{descriptor}").read_text().split()
    return fields[fields.index("mnt_id:") + 1]


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> int:
    """Call mount(2). Return 0, or the error number."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(options),
    )
    return ctypes.get_errno() if result != 0 else 0


def _escape(path: Path, more: str = "") -> str:
    """Escape a path for overlay options: commas separate options, colons lower directories."""
    text = str(path).replace("\\", "\\\\")
    for character in "," + more:
        text = text.replace(character, f"\\{character}")
    return text
