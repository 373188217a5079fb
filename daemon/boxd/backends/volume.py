"""The btrfs volume of an installation, on which boxes have disks of limited size.

It stands at `STATE/disks`: on the host's own btrfs if that counts what its subvolumes take, else on
an image file, `STATE/disks.img`, which is mounted there. Quotas are switched on in the image only:
a file system that is not ours keeps its settings, because counting changes what it costs and which
kernels can mount it. The image has all its blocks from the start, so that a full host never takes
away what the file system inside counts on. It stays mounted while boxes use it, also without a
daemon; its loop device goes with the last mount. *Measured*: making 8 GiB 0.15 s, finding them 0.1.
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

from boxd.backends import btrfs, loopdev
from boxd.backends.disk import floor
from boxd.backends.mounts import is_mounted, kind_at, mount_device, mount_points, unmount
from boxd.backends.run import run
from boxd.errors import BoxdError, Unavailable

LEAST = 256 << 20
"""Bytes of the smallest image that is made."""
DEFAULT_LEAST, DEFAULT_MOST, DEFAULT_PART = 4 << 30, 64 << 30, 3
"""Unless the operator says otherwise: one part in so many of the free space, within bounds."""
HOST_FLOOR = 2 << 30
"""Bytes that making or growing the image leaves to the host."""
MKFS = "mkfs.btrfs"
MKFS_OPTIONS = ("--quiet", "--nodiscard", "--data", "single", "--metadata", "single")
"""One copy of all on the host's one disk; nothing of the image is given back to the host."""
SMALL = 4 << 30
"""Below it data would take all space before the file system has set some apart for its own, so
that no file could be made any more; there both share their space, which is a bit slower."""
MKFS_TIMEOUT = 120.0
MOUNT_OPTIONS = "nodiscard"
LAYERS = 1
"""The group of all layers. What it may not take is left to images of memory, and to the file
system itself: one that is quite full takes seconds for every write, of any box."""
STEP = 1 << 20
"""Bytes that the size of an image is a multiple of."""
_NOCOW = 0x00800000
_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_libc = ctypes.CDLL(None, use_errno=True)
_log = logging.getLogger(__name__)


class Volume:
    """The volume of one state directory."""

    def __init__(self, state_dir: Path, size: int | None) -> None:
        """`size` of the image in bytes; 0: make none, None: chosen by the free space."""
        self._state_dir = state_dir
        self._size = size
        self._image = state_dir / "disks.img"
        self.top = state_dir / "disks"
        self.memories = state_dir / "memories"
        """Memory that belongs to what stands on the volume."""

    @property
    def made(self) -> bool:
        """Whether there is an image, on which boxes may stand."""
        return self._image.exists()

    def outlook(self) -> str:
        """Where disks of boxes will stand, for people; changes nothing.

        Raises Unavailable with the reason why there will be no volume, and what to do about it.
        """
        if self.made:
            return f"{self._image}, {shown(self._image.stat().st_size)}"
        if self._on_host():
            return "the btrfs of the state directory"
        return f"{self._image}, {shown(self._wanted())} (to be made)"

    async def open(self) -> None:
        """Makes, grows, mounts or adopts the volume. Raises Unavailable with the reason."""
        if not self.made:
            if self._on_host():
                self.top.mkdir(mode=0o700, exist_ok=True)
                return
            await self._make(self._wanted())
        await asyncio.to_thread(self._mount)

    async def close(self) -> None:
        """Unmounts the image, unless roots of boxes stand on it."""
        if not is_mounted(self.top):
            return
        boxes = f"{self._state_dir.resolve()}/boxes/"
        if any(place.startswith(boxes) for place in mount_points(Path("/proc/self/mountinfo"))):
            return
        await asyncio.to_thread(unmount, self.top, lazily=False)

    def allow_layers(self, extra: int) -> None:
        """Sets what all layers may take together, and so many bytes more."""
        if self.made:
            status = os.statvfs(self.top)
            size = status.f_blocks * status.f_frsize
            btrfs.limit_group(self.top, LAYERS, size - floor(size) + extra)

    def count_layer(self, layer: Path) -> None:
        """Lets a new layer count among all layers."""
        if self.made:
            btrfs.join_group(layer, LAYERS)

    def _on_host(self) -> bool:
        where = _existing(self._state_dir)
        return btrfs.is_btrfs(where) and btrfs.quota(where) is not btrfs.Quota.OFF

    def _wanted(self) -> int:
        """Bytes of a new image. Raises Unavailable when none can be made."""
        if self._size == 0:
            raise Unavailable("--boxes-size is 0; give another size, or leave it out")
        if shutil.which(MKFS) is None:
            raise Unavailable(f"{MKFS} is missing; apt-get install btrfs-progs")
        if "\tbtrfs\n" not in Path("/proc/filesystems").read_text():
            raise Unavailable("this kernel has no btrfs; modprobe btrfs")
        if not loopdev.CONTROL.exists():
            raise Unavailable("this host has no loop devices; modprobe loop")
        where = _existing(self._state_dir)
        if self._size is None and kind_at(where, Path("/proc/self/mountinfo")) == "tmpfs":
            raise Unavailable(
                "the state directory is in memory, of which an image would take its whole size; "
                "use another --state-dir, or say how much by --boxes-size"
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
                f"there is no space for an image of {shown(size)} for boxes: of {shown(free)} free "
                f"space {shown(HOST_FLOOR)} stay free; give a smaller --boxes-size"
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
            raise Unavailable(f"the image for boxes cannot be made: {error}") from error
        _log.info("made the volume for boxes", extra={"size": shown(size)})

    def _mount(self) -> None:
        """Brings an image to its place, as large as it should be. Blocks."""
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
        """Allocates what the image should have and has not. It never shrinks."""
        present = self._image.stat().st_size
        wanted = max(present, self._size or 0)
        free = shutil.disk_usage(self._state_dir).free
        if wanted > present and free < wanted - present + HOST_FLOOR:
            _log.warning(
                "the volume for boxes does not grow: too little space is free",
                extra={"size": shown(present), "wanted": shown(wanted), "free": shown(free)},
            )
            wanted = present
        try:
            _allocate(self._image, wanted)
        except OSError as error:
            _log.warning("not all of the volume for boxes is allocated", extra={"why": error})


def _existing(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())


def _allocate(image: Path, size: int) -> None:
    """Makes a file have all its blocks, also those that were holes; data in it stays."""
    descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size == 0 and btrfs.is_btrfs(image):
            _write_in_place(descriptor)
        arguments = (ctypes.c_int(descriptor), ctypes.c_int(0), ctypes.c_long(0))
        while _libc.fallocate(*arguments, ctypes.c_long(size)) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number), str(image))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_in_place(descriptor: int) -> None:
    """On btrfs a file that is written anew elsewhere would need more than what it has."""
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
    """A size as the flag takes it, rounded down."""
    return f"{size >> 30}G" if size % (1 << 30) == 0 else f"{size >> 20}M"
