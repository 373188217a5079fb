"""The btrfs volume of an installation, on which boxes have disks of limited size.

The volume is at `STATE/disks`: on the host's own btrfs if that has quotas enabled, else on a
mounted image file, `STATE/disks.img`. Quotas are enabled only in the image. The service does not
change the settings of a host's file system, because quotas affect its speed and the kernels that
can mount it. The service allocates all blocks of the image from the start. So a full host cannot
take space on which the file system in the image relies. The image stays mounted while boxes use it,
even without a daemon. Its loop device disappears with the last mount. *Measured*: creating 8 GiB
0.15 s, adopting them 0.1.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import logging
import os
import shutil
import struct
from pathlib import Path

from boxd.backends.disks import btrfs, loopdev
from boxd.backends.disks.disk import floor
from boxd.backends.host.mounts import (
    is_mounted,
    kind_at,
    mount,
    mount_device,
    mount_points,
    unmount,
)
from boxd.backends.host.run import run
from boxd.errors import BoxdError, Unavailable

LEAST = 256 << 20
"""Bytes of the smallest image."""
DEFAULT_LEAST, DEFAULT_MOST, DEFAULT_PART = 4 << 30, 64 << 30, 3
"""Default size of the image: 1/DEFAULT_PART of the free space, within bounds."""
HOST_FLOOR = 2 << 30
"""Bytes that creating or growing the image leaves free on the host."""
MKFS = "mkfs.btrfs"
MKFS_OPTIONS = ("--quiet", "--nodiscard", "--data", "single", "--metadata", "single")
"""One copy of data and metadata, because the host has one disk. No block goes back to the host."""
SMALL = 4 << 30
"""Bytes. In a smaller image, data would take all space before the file system has reserved some for
metadata, and creating files would fail. So data and metadata share the space there, which is
slightly slower."""
MKFS_TIMEOUT = 120.0
MOUNT_OPTIONS = "nodiscard"
LAYERS = 1
"""The quota group of all layers. The space beyond its limit is left to memory images and to the
file system itself. When a btrfs file system is almost full, each write of any box takes seconds."""
STEP = 1 << 20
"""The size of an image is a multiple of this, in bytes."""
_NOCOW = 0x00800000
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


class Volume:
    """The volume of one state directory."""

    def __init__(self, state_dir: Path, size: int | None, mounts: Path | None = None) -> None:
        """`size` of the image in bytes. 0 means no image; None derives it from the free space.

        `mounts` is the parent of the boxes' mounts, if it is not in the state directory.
        """
        self._state_dir = state_dir
        self._roots = [state_dir.resolve() / "boxes", *([] if mounts is None else [mounts])]
        self._size = size
        self._image = state_dir / "disks.img"
        self.top = state_dir / "disks"
        self.memories = state_dir / "memories"
        """Directory of memory images that belong to snapshots on the volume."""

    @property
    def exists(self) -> bool:
        """Whether an image exists, which may contain disks of boxes."""
        return self._image.exists()

    def outlook(self) -> str:
        """Return a text for users about the place of boxes' disks. Changes nothing.

        Raises Unavailable with the reason why there will be no volume, and the remedy.
        """
        if self.exists:
            return f"{self._image}, {shown(self._image.stat().st_size)}"
        if self._on_host():
            return "the btrfs of the state directory"
        return f"{self._image}, {shown(self._new_size())} (will be created)"

    async def open(self) -> None:
        """Create, extend, mount or adopt the volume. Raises Unavailable with the reason."""
        if not self.exists:
            if self._on_host():
                self.top.mkdir(mode=0o700, exist_ok=True)
                return
            await self._make(self._new_size())
        await asyncio.to_thread(self._mount)

    async def close(self) -> None:
        """Unmount the image, unless roots of boxes on it are mounted."""
        if not is_mounted(self.top):
            return
        boxes = tuple(f"{place}/" for place in self._roots)
        if any(place.startswith(boxes) for place in mount_points(Path("/proc/self/mountinfo"))):
            return
        await asyncio.to_thread(unmount, self.top, lazily=False)

    def allow_layers(self, extra: int) -> None:
        """Set the common limit of all layers, plus `extra` bytes."""
        if self.exists:
            status = os.statvfs(self.top)
            size = status.f_blocks * status.f_frsize
            btrfs.limit_group(self.top, LAYERS, size - floor(size) + extra)

    def count_layer(self, layer: Path) -> None:
        """Add a new layer to the quota group of all layers."""
        if self.exists:
            btrfs.join_group(layer, LAYERS)

    def _on_host(self) -> bool:
        where = _existing(self._state_dir)
        return btrfs.is_btrfs(where) and btrfs.quota(where) is not btrfs.Quota.OFF

    def _new_size(self) -> int:
        """Return the bytes of a new image. Raises Unavailable if it cannot be created."""
        if self._size == 0:
            raise Unavailable("--boxes-size is 0; give another size, or leave it out")
        if shutil.which(MKFS) is None:
            raise Unavailable(f"{MKFS} is missing; apt-get install btrfs-progs")
        if not _kernel_has_btrfs(_existing(self._state_dir)):
            raise Unavailable("this kernel has no btrfs; modprobe btrfs")
        if not loopdev.CONTROL.exists():
            raise Unavailable("this host has no loop devices; modprobe loop")
        where = _existing(self._state_dir)
        if self._size is None and kind_at(where, Path("/proc/self/mountinfo")) == "tmpfs":
            raise Unavailable(
                "the state directory is in memory, and an image would use its whole size there; "
                "use another --state-dir, or set --boxes-size"
            )
        free = shutil.disk_usage(where).free
        size = self._size or min(DEFAULT_MOST, free // DEFAULT_PART)
        least = LEAST if self._size else DEFAULT_LEAST
        if size < least:
            raise Unavailable(
                f"an image of {shown(size)} for boxes is too small; free space in the state "
                f"directory, or give --boxes-size {shown(LEAST)} or more"
            )
        if free < size + HOST_FLOOR:
            raise Unavailable(
                f"there is no space for an image of {shown(size)} for boxes: {shown(free)} are "
                f"free, of which {shown(HOST_FLOOR)} are reserved; set a smaller --boxes-size"
            )
        return size - size % STEP

    async def _make(self, size: int) -> None:
        new = self._image.with_suffix(".new")
        new.unlink(missing_ok=True)
        try:
            await asyncio.to_thread(_allocate, new, size)
            mixed = ("--mixed",) if size < SMALL else ()
            await run(MKFS, *MKFS_OPTIONS, *mixed, str(new), timeout=MKFS_TIMEOUT)
            await asyncio.to_thread(_publish, new, self._image)
        except (OSError, BoxdError) as error:
            new.unlink(missing_ok=True)
            raise Unavailable(f"the image for boxes cannot be created: {error}") from error
        _log.info("created the volume for boxes", extra={"size": shown(size)})

    def _mount(self) -> None:
        """Extend the image if needed, and mount it. Blocks."""
        self._extend()
        self.top.mkdir(mode=0o700, exist_ok=True)
        with loopdev.attached(self._image) as device:
            loopdev.take_growth(device)
            if not is_mounted(self.top):
                mount_device(device, self.top, "btrfs", MOUNT_OPTIONS)
        btrfs.resize(self.top)
        if btrfs.quota(self.top) is btrfs.Quota.OFF:
            btrfs.enable_quota(self.top)
        self.allow_layers(0)
        btrfs.forget_removed(self.top)
        self.top.chmod(0o700)

    def _extend(self) -> None:
        """Allocate missing blocks and growth of the image. The image never shrinks."""
        present = self._image.stat().st_size
        target = max(present, self._size or 0)
        free = shutil.disk_usage(self._state_dir).free
        if target > present and free < target - present + HOST_FLOOR:
            _log.warning(
                "the volume for boxes cannot grow: the host has too little free space",
                extra={"size": shown(present), "wanted": shown(target), "free": shown(free)},
            )
            target = present
        try:
            _allocate(self._image, target)
        except OSError as error:
            _log.warning("the volume for boxes is not fully allocated", extra={"why": error})


def _kernel_has_btrfs(directory: Path) -> bool:
    """Return whether the kernel has btrfs, and let it load the module if needed.

    The kernel lists a file system only after its module has been loaded, which a mount causes.
    """
    kinds = Path("/proc/filesystems")
    if "\tbtrfs\n" not in kinds.read_text():
        mount("none", directory, "btrfs", 0)  # fails: there is no device
    return "\tbtrfs\n" in kinds.read_text()


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _allocate(image: Path, size: int) -> None:
    """Allocate all blocks of a file, including holes. Existing data stays."""
    descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size == 0 and btrfs.is_btrfs(image):
            _write_in_place(descriptor)
        file, mode, start = ctypes.c_int(descriptor), ctypes.c_int(0), ctypes.c_long(0)
        while _libc.fallocate(file, mode, start, ctypes.c_long(size)) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number), str(image))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_in_place(descriptor: int) -> None:
    """Disable copy-on-write on btrfs, which would need more space than the file's own blocks."""
    flags = bytearray(8)
    fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    number = struct.unpack("<q", flags)[0] | _NOCOW
    fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("<q", number))


def _publish(new: Path, image: Path) -> None:
    for path, kind in ((new, 0), (image.parent, os.O_DIRECTORY)):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | kind)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == new:
            new.rename(image)


def shown(size: int) -> str:
    """Format a size for the flag --boxes-size, rounded down."""
    return f"{size >> 30}G" if size % (1 << 30) == 0 else f"{size >> 20}M"
