"""Attaches files to loop devices, so that they are block devices.

Loop devices belong to the host, regardless of the mount namespace that creates them. Devices
attached here have autoclear: the kernel frees each with its last user or mount, so a killed daemon
leaves none. The kernel creates as many devices as needed, even if it started with only a few. If
/dev is not a devtmpfs, this module creates the node.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL = Path("/dev/loop-control")
_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A
_GET_STATUS = 0x4C05
_SET_CAPACITY = 0x4C07
_AUTOCLEAR, _DIRECT_IO = 4, 16
_INFO = "<QQQQQIIII64s64s32s16x"
_CONFIG_HEAD, _CONFIG_RESERVED = "<II", 64
_BLOCK = 4096
_REMOVED = " (deleted)"
"""Suffix that the kernel adds to the name of a removed file."""
WAIT_S = 10.0
"""Seconds to wait for a free device. Other programs may take each device that the kernel offers, or
limit their number."""
_POLL_S = 0.02
_FULL = (errno.ENOSPC, errno.EBUSY, errno.ENXIO, errno.EAGAIN)
"""Errors if no device is free now, or another program took it first."""


@contextmanager
def attached(image: Path) -> Iterator[Path]:
    """Yield the loop device of a file, which exists during this context and while it is mounted.

    The function reuses an existing device of the file, because two devices of one file would not
    see each other's writes. The device uses direct I/O where the file system supports it, so that
    nothing is cached twice. Discard is disabled, because holes in the file would be missing blocks
    when the host's disk is full. Raises Unavailable with the reason.
    """
    descriptor, device = _find(image) or _attach(image)
    try:
        (_facts(device) / "queue/discard_max_bytes").write_text("0")
        yield device
    finally:
        os.close(descriptor)


def find(image: Path) -> Path | None:
    """Return the device that has a file attached, or None."""
    match = _find(image)
    if match is None:
        return None
    descriptor, device = match
    os.close(descriptor)
    return device


def take_growth(device: Path) -> None:
    """Extend a device to the new size of its file."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_CAPACITY)
    finally:
        os.close(descriptor)


def _facts(device: Path) -> Path:
    return Path("/sys/block") / device.name


def _find(image: Path) -> tuple[int, Path] | None:
    """Return an open descriptor of the device that has a file attached, and its path, or None."""
    status = image.stat()
    for entry in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        device = Path("/dev") / entry.parents[1].name
        try:
            # Compare names first: an open descriptor of another device would stop its autoclear.
            if not entry.read_text().strip().removesuffix(_REMOVED).endswith(image.name):
                continue
            descriptor = _open(device)
        except OSError:
            continue  # the device was cleared in the meantime
        answer = bytearray(struct.calcsize(_INFO))
        try:
            fcntl.ioctl(descriptor, _GET_STATUS, answer)
        except OSError:
            answer.clear()
        if bytes(answer[:16]) == struct.pack("<QQ", status.st_dev, status.st_ino):
            return descriptor, device
        os.close(descriptor)
    return None


def _attach(image: Path) -> tuple[int, Path]:
    """Attach a file to a new device; return its open descriptor and path. Blocks up to WAIT_S."""
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"this host has no loop devices ({CONTROL}: {error.strerror})") from None
    try:
        file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _wait(control, file)
        finally:
            os.close(file)
    except OSError as error:
        raise Unavailable(f"a loop device cannot be created: {error.strerror}") from error
    finally:
        os.close(control)


def _wait(control: int, file: int) -> tuple[int, Path]:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            device = Path(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}")
            return _configure(device, file), device
        except OSError as error:
            if error.errno not in _FULL:
                raise
        if time.monotonic() > deadline:
            raise Unavailable(f"no loop device became free in {WAIT_S:g} s: {_usage()}")
        time.sleep(_POLL_S)


def _usage() -> str:
    """Return a sentence for users about the devices in use."""
    files = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # the device was cleared in the meantime
            files.append(entry.read_text().strip())
    removed = [file for file in files if file.endswith(_REMOVED)]
    text = f"{len(files)} are in use"
    if removed:
        text += f", {len(removed)} of them by files that were removed ({', '.join(removed)})"
    return f"{text}; detach devices that you do not need (losetup --list)"


def _configure(device: Path, file: int) -> int:
    """Attach a file to a device.

    Raises OSError with EBUSY if another program took the device first.
    """
    descriptor = _open(device)
    flags = _AUTOCLEAR | _DIRECT_IO  # the kernel ignores direct I/O if the file system has none
    info = struct.pack(_INFO, 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"")
    head = struct.pack(_CONFIG_HEAD, file, _BLOCK)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, bytearray(head + info + bytes(_CONFIG_RESERVED)))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open(device: Path) -> int:
    """Open a device. If /dev is not a devtmpfs, create its node."""
    with suppress(FileNotFoundError):
        return os.open(device, os.O_RDWR | os.O_CLOEXEC)
    major, minor = (_facts(device) / "dev").read_text().split(":")
    with suppress(FileExistsError):
        os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
    return os.open(device, os.O_RDWR | os.O_CLOEXEC)
