"""Loop devices: a file as a block device.

Devices are the host's, whatever mount namespace asks for them. Ours clear themselves when the last
who has them open, or mounted, lets go: a daemon that is killed leaves none behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import contextmanager
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
_TRIES = 32


@contextmanager
def attached(image: Path) -> Iterator[Path]:
    """The device of a file, which stays for as long as this lasts or somebody mounts it.

    One that has the file already is used again: two devices of one file would not see each
    other's writes. The device reads and writes the file directly where its file system can, so
    that nothing is cached twice, and cannot be told to give blocks back: holes in the file would
    be blocks that are missing when the host is full. Raises Unavailable with the reason.
    """
    descriptor, device = _find(image) or _attach(image)
    try:
        (_facts(device) / "queue/discard_max_bytes").write_text("0")
        yield device
    finally:
        os.close(descriptor)


def find(image: Path) -> Path | None:
    """The device that has a file; None when there is none."""
    found = _find(image)
    if found is None:
        return None
    os.close(found[0])
    return found[1]


def take_growth(device: Path) -> None:
    """Lets a device be as large as its file has become."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_CAPACITY)
    finally:
        os.close(descriptor)


def _facts(device: Path) -> Path:
    return Path("/sys/block") / device.name


def _find(image: Path) -> tuple[int, Path] | None:
    """An open descriptor of the device that has a file, and its path."""
    wanted = image.stat()
    for entry in sorted(Path("/sys/block").glob("loop*/loop")):
        device = Path("/dev") / entry.parent.name
        try:
            descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it was cleared meanwhile
        answer = bytearray(struct.calcsize(_INFO))
        try:
            fcntl.ioctl(descriptor, _GET_STATUS, answer)
        except OSError:
            answer.clear()
        if bytes(answer[:16]) == struct.pack("<QQ", wanted.st_dev, wanted.st_ino):
            return descriptor, device
        os.close(descriptor)
    return None


def _attach(image: Path) -> tuple[int, Path]:
    """An open descriptor of a new device, and its path."""
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"there are no loop devices here ({CONTROL}: {error.strerror})") from None
    try:
        file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(_TRIES):
                device = Path(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}")
                descriptor = _configure(device, file)
                if descriptor is not None:
                    return descriptor, device
        finally:
            os.close(file)
    except OSError as error:
        raise Unavailable(f"no loop device can be made: {error.strerror}") from error
    finally:
        os.close(control)
    raise Unavailable("no loop device is free for long enough to be taken")


def _configure(device: Path, file: int) -> int | None:
    """None when somebody else took the device first."""
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    flags = _AUTOCLEAR | _DIRECT_IO  # without direct I/O where the file's file system has none
    info = struct.pack(_INFO, 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"")
    head = struct.pack(_CONFIG_HEAD, file, _BLOCK)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, bytearray(head + info + bytes(_CONFIG_RESERVED)))
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EBUSY:
            return None
        raise
    return descriptor
