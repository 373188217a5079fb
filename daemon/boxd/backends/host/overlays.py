"""The roots of boxes: overlays of an image and a layer."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host.id_maps import acting_as, mapped, mapped_name
from boxd.backends.host.mounts import (
    NODEV,
    is_mounted,
    mount,
    rows,
    table,
    unescape,
    unmount,
    unmount_everywhere,
)
from boxd.errors import BoxdError, DiskFull, RootHeld, Unavailable

if TYPE_CHECKING:
    from boxd.backends.host.id_maps import IdMap

_PROC = Path("/proc")
_UPPER = "upperdir="
_LAYER = 1
"""The place of the layer among the sources of an overlay."""
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


async def mount_overlay(root: Path, lower: Path, layer: Path, by: IdMap | None = None) -> None:
    """Mount an overlay at `root`, unless something is mounted there. Creates the directory.

    `layer` has the directories `upper` and `work`. With `by`, the files have the ids of a range.
    Device nodes are disabled on the overlay. Raises DiskFull if there is no space for the kernel's
    own writes during a mount, LayerOfAnother, RootHeld, or Unavailable with the kernel's error.
    """
    if is_mounted(root):
        return
    _renew_mount_point(root)
    if by is None:
        await _mount_layers(root, lower, layer, None)
        return
    try:
        with mapped(by, (lower, layer), beside=root.parent) as (mapped_lower, mapped_layer):
            await _mount_layers(root, mapped_lower, mapped_layer, by)
    except OSError as error:
        raise Unavailable(
            f"the root of the box cannot be mounted with its own ids: {error.strerror}; this needs "
            "Linux 5.19 and a file system with id maps (ext4, btrfs, xfs)"
        ) from error


async def _mount_layers(root: Path, lower: Path, layer: Path, by: IdMap | None) -> None:
    upper = layer / "upper"
    options = (
        f"lowerdir={_escape(lower, ':')},upperdir={_escape(upper)},"
        f"workdir={_escape(layer / 'work')},{_OVERLAY_OPTIONS}"
    )
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        with acting_as(by):
            number = mount("overlay", root, "overlay", NODEV, options)
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


def _renew_mount_point(root: Path) -> None:
    """Recreate the directory, so that no mount of an earlier release remains on it."""
    unmount_everywhere(root)
    root.mkdir(mode=0o755, parents=True, exist_ok=True)


async def require_unused(root: Path, lower: Path, layer: Path, by: IdMap | None = None) -> None:
    """Wait until no process uses the overlay that was mounted at `root`. Raises RootHeld.

    The only way to find out is to mount the layer again: the kernel refuses it while it is in use.
    """
    try:
        await mount_overlay(root, lower, layer, by)
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
        for option in map(unescape, row[-1].split(","))
        if option.startswith(_UPPER) and _is_layer(Path(option.removeprefix(_UPPER)), upper)
    ]


def _is_layer(path: Path, upper: Path) -> bool:
    """Return whether an overlay names a layer, by its own path or by that of a mount with ids.

    Both are below a directory with the name of the box.
    """
    is_mapped = path.parent.name == mapped_name(_LAYER) and path.name == upper.name
    return path == upper or (is_mapped and path.parents[1].name == upper.parents[1].name)


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


def _escape(path: Path, more: str = "") -> str:
    """Escape a path for overlay options: commas separate options, colons lower directories."""
    text = str(path).replace("\\", "\\\\")
    for character in "," + more:
        text = text.replace(character, f"\\{character}")
    return text
