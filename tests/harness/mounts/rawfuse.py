"""A FUSE mount whose server is the test: it reads each request and decides when to answer."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOKUP, GETATTR, INIT = 1, 3, 26
"""Operations of <linux/fuse.h>."""
ROOT = 1
DIRECTORY, FILE = 0o040755, 0o100644
_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_ATTR = struct.Struct("=6Q10I")
_ENTRY = struct.Struct("=4Q2I")
_ATTR_OUT = struct.Struct("=Q2I")
_INIT_OUT = struct.Struct("=4I2H2I2H8I")
_DETACH = 2
PATIENCE = 20.0
"""Timeout of an expected request, in seconds."""


@dataclass(frozen=True)
class Request:
    """A request of the kernel."""

    opcode: int
    unique: int
    ino: int
    body: bytes


class RawFuse:
    """The server; `descriptor` is an open /dev/fuse."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        request = self.read(INIT)
        flags = (7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0)
        self._answer(request, _INIT_OUT.pack(*flags, *[0] * 8))

    def read(self, opcode: int) -> Request:
        """Return the next request of a kind. Refuse other requests that expect an answer."""
        while True:
            ready, _, _ = select.select([self.descriptor], [], [], PATIENCE)
            assert ready, f"no request {opcode}"
            data = os.read(self.descriptor, 1 << 20)
            _, code, unique, ino, *_ = _IN.unpack_from(data)
            request = Request(code, unique, ino, data[_IN.size :])
            if code == opcode:
                return request
            if code not in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET
                os.write(self.descriptor, _OUT.pack(_OUT.size, -38, unique))

    def answer_entry(self, request: Request, ino: int, size: int, valid: int) -> None:
        """Answer with a file whose name and attributes are valid for so many seconds."""
        entry = _ENTRY.pack(ino, 0, valid, valid, 0, 0)
        self._answer(request, entry + _attributes(ino, size))

    def answer_attributes(self, request: Request, size: int) -> None:
        """Answer with attributes of the requested inode."""
        self._answer(request, _ATTR_OUT.pack(0, 0, 0) + _attributes(request.ino, size))

    def _answer(self, request: Request, body: bytes) -> None:
        os.write(self.descriptor, _OUT.pack(_OUT.size + len(body), 0, request.unique) + body)


def _attributes(ino: int, size: int) -> bytes:
    mode = DIRECTORY if ino == ROOT else FILE
    return _ATTR.pack(ino, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


@contextmanager
def served(directory: Path) -> Iterator[RawFuse]:
    """Yield a mount on a directory. Unanswered requests end with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0"
        if libc.mount(b"raw", bytes(directory), b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "mount")
        try:
            yield RawFuse(descriptor)
        finally:
            libc.umount2(bytes(directory), _DETACH)
    finally:
        os.close(descriptor)
