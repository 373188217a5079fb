"""Mounts on the host: the overlay roots of boxes, and what the tables of mounts say."""

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

from boxd.errors import DiskFull, Unavailable

_PROC = Path("/proc")
_MS_NOSUID, _MS_NODEV, _MS_NOATIME = 2, 4, 1024
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)
_OVERLAY_OPTIONS = "index=on,nfs_export=on,metacopy=off,redirect_dir=off,xino=on"
"""A layer made by a box must not be able to name files outside itself. Handles of files must
decode, or a box that watches files cannot be suspended. A file must keep its number when it is
first written, and all files must show one device, wherever the layer stands."""
_BUSY_TIMEOUT = 10.0
"""Seconds for the kernel to let go of a root that was unmounted: a layer is mounted only once."""
_POLL = 0.02
_REMEDY = "overlay needs a kernel with overlayfs and a state directory that is not on one"
_REMEDIES = {
    errno.EBUSY: "a process with mounts of its own (unshare -m) has it still; try again when that"
    " has ended",
    errno.ENOSPC: "there is no space for what the kernel writes then",
    errno.EDQUOT: "there is no space for what the kernel writes then",
}


class LayerOfAnother(Unavailable):
    """The upper or the work directory was made for another image, or is a copy."""


_KINDS = {
    errno.ESTALE: LayerOfAnother,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
}


async def mount_overlay(root: Path, lower: Path, upper: Path, work: Path) -> None:
    """Mounts an overlay at `root`, unless something is mounted there.

    Device nodes do not work on it. Raises DiskFull when there is no space for what the kernel
    writes then, LayerOfAnother, or Unavailable with the kernel's words.
    """
    if is_mounted(root):
        return
    options = (
        f"lowerdir={_escape(lower, ':')},upperdir={_escape(upper)},"
        f"workdir={_escape(work)},{_OVERLAY_OPTIONS}"
    )
    give_up = time.monotonic() + _BUSY_TIMEOUT
    while True:
        number = _mount("overlay", root, "overlay", _MS_NODEV, options)
        if number == 0 and os.statvfs(root).f_flag & os.ST_RDONLY:
            unmount(root, lazily=False)
            number = errno.ENOSPC  # that is why the kernel made it read-only
        if number == 0:
            return
        if number != errno.EBUSY or time.monotonic() > give_up:
            break
        await asyncio.sleep(_POLL)
    if number == errno.EBUSY:
        # Users are not told of the host's processes; who runs the host has to end this one.
        _log.warning("%s is still mounted for %s", root, await asyncio.to_thread(_holders, root))
    raise _KINDS.get(number, Unavailable)(
        f"the root of the box cannot be mounted: {os.strerror(number)}; "
        f"{_REMEDIES.get(number, _REMEDY)}"
    )


def mount_device(device: Path, directory: Path, kind: str, options: str) -> None:
    """Mounts a block device. Raises Unavailable with the kernel's words."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOATIME
    number = _mount(str(device), directory, kind, flags, options)
    if number != 0:
        raise Unavailable(f"{directory} cannot be mounted as {kind}: {os.strerror(number)}")


def unmount(directory: Path, *, lazily: bool) -> None:
    """Takes away all that is mounted at a directory. Lazily: for others, when they are done."""
    while is_mounted(directory):
        flags = _MNT_DETACH if lazily else 0
        if _libc.umount2(os.fsencode(directory), ctypes.c_int(flags)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(directory))


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


def kind_at(path: Path, mountinfo: Path) -> str:
    """The kind of file system that a path is on, by a mountinfo file; empty when it is not there.

    Subvolumes of btrfs are on devices that no table names.
    """
    number = path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    rows = [line.split() for line in mountinfo.read_text().splitlines()]
    return next((row[row.index("-") + 1] for row in rows if row[2] == device), "")


def unescape(field: str) -> str:
    """A path as mountinfo writes it: blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mount_points(mountinfo: Path) -> list[str]:
    """Where something is mounted, in the order of mounting."""
    return [unescape(line.split()[4]) for line in mountinfo.read_text().splitlines()]


def _holders(root: Path) -> str:
    """Processes with tables of mounts of their own in which a root still stands: one of each."""
    seen = {os.readlink("/proc/self/ns/mnt")}
    found = []
    for number in sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()):
        process = _PROC / str(number)
        with suppress(OSError):  # it ended
            table = os.readlink(process / "ns/mnt")
            if table in seen:
                continue
            seen.add(table)
            if any(point.endswith(str(root)) for point in mount_points(process / "mountinfo")):
                name = (process / "comm").read_text().strip()
                found.append(f"process {number} ({name})")
    return ", ".join(found) or "nobody who could be found"


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> int:
    """0, or the number of the error."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        os.fsencode(options),
    )
    return ctypes.get_errno() if result != 0 else 0


def _escape(path: Path, more: str = "") -> str:
    """Overlay splits its options at commas, and lower directories at colons."""
    text = str(path).replace("\\", "\\\\")
    for character in "," + more:
        text = text.replace(character, f"\\{character}")
    return text
