"""Builds what answers to the kernel consist of, from values of the drive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyfuse3

if TYPE_CHECKING:
    from wrkfs.types import Attr, Ino

PREFERRED_IO = 64 * 1024
"""st_blksize: programs size their buffers by it, and each write(2) is one request."""


def reply_dot(token: pyfuse3.ReaddirToken, name: bytes, ino: Ino, cookie: int) -> bool:
    """Add `.` or `..` to the answer: the kernel uses only its number and type."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ino
    entry.st_mode = 0o040755
    entry.entry_timeout = entry.attr_timeout = 0
    return bool(pyfuse3.readdir_reply(token, name, entry, cookie))


def entry(attr: Attr) -> pyfuse3.EntryAttributes:
    """Build an answer with attributes that the kernel must not cache."""
    answer = pyfuse3.EntryAttributes()
    answer.st_ino = attr.ino
    answer.entry_timeout = 0
    answer.attr_timeout = 0
    answer.st_mode = attr.mode
    answer.st_nlink = attr.nlink
    answer.st_uid = attr.uid
    answer.st_gid = attr.gid
    answer.st_rdev = attr.rdev
    answer.st_size = attr.size
    answer.st_blksize = PREFERRED_IO
    answer.st_blocks = -(-(attr.size - attr.holes) // 512)
    answer.st_atime_ns = attr.atime_ns
    answer.st_mtime_ns = attr.mtime_ns
    answer.st_ctime_ns = attr.ctime_ns
    return answer


def skip_flush(info: pyfuse3.FileInfo) -> None:
    """Tell the kernel to send no FLUSH when the opened file is closed, if the binding can."""
    if hasattr(info, "noflush"):
        info.noflush = True
