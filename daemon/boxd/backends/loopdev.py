"""Loop devices: a file as a block device.

Devices are the host's, whatever mount namespace asks for them. Ours clear themselves when the last
who has them open, or mounted, lets go: a daemon that is killed leaves none behind. The kernel makes
as many as are asked for, also where it began with a few; who has no devtmpfs at /dev gets the node
from us.
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
"""What the kernel adds to the name of a file that was removed."""
WAIT_S = 10.0
"""For a device that is free: others may take each one that the kernel names, or limit how many."""
_POLL_S = 0.02
_FULL = (errno.ENOSPC, errno.EBUSY, errno.ENXIO, errno.EAGAIN)
"""Nothing is free now, or what was free is gone again."""


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
    for entry in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        device = Path("/dev") / entry.parents[1].name
        try:
            # Whoever opens a foreign one keeps it from clearing itself.
            if not entry.read_text().strip().removesuffix(_REMOVED).endswith(image.name):
                continue
            descriptor = _open(device)
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
    """An open descriptor of a new device, and its path. Blocks for WAIT_S at most."""
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"there are no loop devices here ({CONTROL}: {error.strerror})") from None
    try:
        file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        try:
            return _wait(control, file)
        finally:
            os.close(file)
    except OSError as error:
        raise Unavailable(f"no loop device can be made: {error.strerror}") from error
    finally:
        os.close(control)


def _wait(control: int, file: int) -> tuple[int, Path]:
    give_up = time.monotonic() + WAIT_S
    while True:
        try:
            device = Path(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}")
            return _configure(device, file), device
        except OSError as error:
            if error.errno not in _FULL:
                raise
        if time.monotonic() > give_up:
            raise Unavailable(f"no loop device became free in {WAIT_S:g} s: {_taken()}")
        time.sleep(_POLL_S)


def _taken() -> str:
    """What the devices are taken by, for people."""
    files = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it was cleared meanwhile
            files.append(entry.read_text().strip())
    removed = [file for file in files if file.endswith(_REMOVED)]
    text = f"{len(files)} are in use"
    if removed:
        text += f", {len(removed)} of them by files that were removed ({', '.join(removed)})"
    return f"{text}; unmount what is not needed (losetup --list)"


def _configure(device: Path, file: int) -> int:
    """OSError EBUSY when somebody else took the device first."""
    descriptor = _open(device)
    flags = _AUTOCLEAR | _DIRECT_IO  # without direct I/O where the file's file system has none
    info = struct.pack(_INFO, 0, 0, 0, 0, 0, 0, 0, 0, flags, b"", b"", b"")
    head = struct.pack(_CONFIG_HEAD, file, _BLOCK)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, bytearray(head + info + bytes(_CONFIG_RESERVED)))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open(device: Path) -> int:
    """Opens a device; where /dev does not follow the kernel its node is made."""
    with suppress(FileNotFoundError):
        return os.open(device, os.O_RDWR | os.O_CLOEXEC)
    major, minor = (_facts(device) / "dev").read_text().split(":")
    with suppress(FileExistsError):
        os.mknod(device, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
    return os.open(device, os.O_RDWR | os.O_CLOEXEC)
