"""What the kernel's FUSE supports."""

from __future__ import annotations

import os
import select
import struct
from pathlib import Path

from boxd.backends.host import mounts

DEVICE = Path("/dev/fuse")
_OPTIONS = "fd={},rootmode=40000,user_id=0,group_id=0"
_REQUEST_BYTES = 8192
"""The kernel refuses to write a request into a smaller buffer."""
_INIT = struct.Struct("<40xIIIII")
"""A header, then of `fuse_init_in`: major, minor, max_readahead, flags, flags2."""
_HAS_FLAGS2 = 1 << 30
_ALLOW_IDMAP = 1 << (40 - 32)
"""FUSE_INIT_EXT in `flags` and FUSE_ALLOW_IDMAP in `flags2` (include/uapi/linux/fuse.h)."""
_WAIT_MS = 5_000


def maps_ids(directory: Path) -> bool:
    """Return whether mounts of FUSE can map ids. Linux can since 6.12.

    Mounts a file system at an empty directory, reads the first request, in which the kernel names
    its features, and removes the mount. Raises OSError.
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        number = mounts.mount("check", directory, "fuse", mounts.NOSUID, _OPTIONS.format(device))
        if number != 0:
            raise OSError(number, os.strerror(number), str(directory))
        try:
            return _offers_maps(_first_request(device))
        finally:
            mounts.detach(directory)
    finally:
        os.close(device)


def _first_request(device: int) -> bytes:
    waiting = select.poll()
    waiting.register(device, select.POLLIN)
    if not waiting.poll(_WAIT_MS):
        raise TimeoutError("the kernel sent no first request of FUSE")
    return os.read(device, _REQUEST_BYTES)


def _offers_maps(request: bytes) -> bool:
    if len(request) < _INIT.size:  # before Linux 5.17 the request has no `flags2`
        return False
    _, _, _, flags, flags2 = _INIT.unpack_from(request)
    return bool(flags & _HAS_FLAGS2 and flags2 & _ALLOW_IDMAP)
