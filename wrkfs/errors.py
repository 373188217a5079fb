"""Errors of the drive; each class carries one errno.

::

    WrkfsError
    ├── NotFound ENOENT          ├── Exists EEXIST            ├── NotDirectory ENOTDIR
    ├── IsDirectory EISDIR       ├── NotEmpty ENOTEMPTY       ├── NameTooLong ENAMETOOLONG
    ├── TooManyLinks EMLINK      ├── SymlinkLoop ELOOP        ├── InvalidArgument EINVAL
    ├── NotPermitted EPERM       ├── AccessDenied EACCES      ├── NotSupported ENOTSUP
    ├── NoData ENODATA           ├── OutOfRange ERANGE        ├── FileTooBig EFBIG
    ├── ArgumentTooBig E2BIG     ├── CrossDevice EXDEV        ├── Busy EBUSY
    ├── NoSpace ENOSPC           ├── QuotaExceeded EDQUOT     ├── Stale ESTALE
    ├── BadDescriptor EBADF      ├── PreconditionFailed ECANCELED
    └── StorageError EIO
        ├── Corrupt              the store gave other bytes than were written
        │   └── Missing          the object is not there
        ├── Unavailable          database or store out for longer than the deadline
        ├── Fenced               this session has expired; it is never revived
        └── Doubtful             nobody knows whether the call was applied
"""

from __future__ import annotations

import errno as _errno
import os
from typing import ClassVar


class WrkfsError(Exception):
    """Base of everything the drive raises on purpose; `errno` is what a program is told."""

    errno: ClassVar[int] = _errno.EIO

    def __str__(self) -> str:
        detail = super().__str__()
        name = os.strerror(self.errno)
        return f"{name}: {detail}" if detail else name


class NotFound(WrkfsError):
    """No such name or inode."""

    errno = _errno.ENOENT


class Exists(WrkfsError):
    """The name is taken."""

    errno = _errno.EEXIST


class NotDirectory(WrkfsError):
    """A directory was needed."""

    errno = _errno.ENOTDIR


class IsDirectory(WrkfsError):
    """A directory stands where a file was needed."""

    errno = _errno.EISDIR


class NotEmpty(WrkfsError):
    """The directory has entries."""

    errno = _errno.ENOTEMPTY


class NameTooLong(WrkfsError):
    """Name above NAME_MAX or path above PATH_MAX."""

    errno = _errno.ENAMETOOLONG


class TooManyLinks(WrkfsError):
    """LINK_MAX reached."""

    errno = _errno.EMLINK


class SymlinkLoop(WrkfsError):
    """More than 40 symbolic links on one path."""

    errno = _errno.ELOOP


class InvalidArgument(WrkfsError):
    """The call makes no sense (a directory moved into itself, bad flags)."""

    errno = _errno.EINVAL


class NotPermitted(WrkfsError):
    """The operation is not allowed on this kind of object."""

    errno = _errno.EPERM


class AccessDenied(WrkfsError):
    """Permission bits refuse the operation."""

    errno = _errno.EACCES


class NotSupported(WrkfsError):
    """The drive does not offer this operation."""

    errno = _errno.ENOTSUP


class NoData(WrkfsError):
    """No such extended attribute."""

    errno = _errno.ENODATA


class OutOfRange(WrkfsError):
    """The caller's buffer is too small, or a value is too large."""

    errno = _errno.ERANGE


class FileTooBig(WrkfsError):
    """Beyond the largest file size."""

    errno = _errno.EFBIG


class ArgumentTooBig(WrkfsError):
    """An extended attribute's value is above the limit."""

    errno = _errno.E2BIG


class CrossDevice(WrkfsError):
    """Both names must be on one volume."""

    errno = _errno.EXDEV


class Busy(WrkfsError):
    """The object is in use."""

    errno = _errno.EBUSY


class NoSpace(WrkfsError):
    """The store has no room."""

    errno = _errno.ENOSPC


class QuotaExceeded(WrkfsError):
    """The volume's quota of bytes or inodes is used up."""

    errno = _errno.EDQUOT


class Stale(WrkfsError):
    """The inode is gone."""

    errno = _errno.ESTALE


class BadDescriptor(WrkfsError):
    """The handle is closed or was opened for something else."""

    errno = _errno.EBADF


class PreconditionFailed(WrkfsError):
    """`publish` found another version than the caller demanded."""

    errno = _errno.ECANCELED


class StorageError(WrkfsError):
    """Database or object store failed."""


class Corrupt(StorageError):
    """The object store returned other bytes than were written, or none."""


class Missing(Corrupt):
    """The object store has no such object: lost, or a compaction has replaced it since."""


class Unavailable(StorageError):
    """Database or object store did not answer within the deadline."""


class Fenced(StorageError):
    """The session has expired and is never revived; the call that says so changed nothing."""


class Doubtful(StorageError):
    """A call lost its answer and its session was fenced before it could be asked for again."""


def by_errno(number: int, detail: str = "") -> WrkfsError:
    """The error for an errno that a SQL function returned; StorageError for unknown numbers."""
    return _BY_ERRNO.get(number, StorageError)(detail)


_BY_ERRNO: dict[int, type[WrkfsError]] = {
    cls.errno: cls for cls in WrkfsError.__subclasses__() if cls is not StorageError
}
