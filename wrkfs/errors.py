"""Errors of the drive; each class carries one errno.

::

    WrkfsError
    ├── NotFound ENOENT          ├── Exists EEXIST            ├── NotDirectory ENOTDIR
    ├── IsDirectory EISDIR       ├── NotEmpty ENOTEMPTY       ├── NameTooLong ENAMETOOLONG
    ├── TooManyLinks EMLINK      ├── SymlinkLoop ELOOP        ├── InvalidArgument EINVAL
    ├── NotPermitted EPERM       ├── AccessDenied EACCES      ├── NotSupported ENOTSUP
    ├── NoData ENODATA           ├── OutOfRange ERANGE        ├── FileTooBig EFBIG
    ├── ArgumentTooBig E2BIG     ├── Busy EBUSY               ├── NoSpace ENOSPC
    ├── QuotaExceeded EDQUOT     ├── Stale ESTALE             ├── BadDescriptor EBADF
    ├── PreconditionFailed ECANCELED   ├── ReadOnly EROFS     ├── CrossesDevices EXDEV
    ├── NoSuchAddress ENXIO
    ├── WouldBlock EAGAIN
    ├── Deadlock EDEADLK         ├── Interrupted EINTR        ├── NoLocks ENOLCK
    └── StorageError EIO
        ├── Corrupt              the store returned other bytes than were written
        │   └── Missing          the object does not exist
        ├── Unavailable          no answer from database or store within the deadline
        ├── Fenced               this session has expired
        └── Doubtful             the outcome of the call is unknown
"""

from __future__ import annotations

import errno as _errno
import os
from typing import ClassVar


class WrkfsError(Exception):
    """Base class of the drive's errors; programs receive `errno`."""

    errno: ClassVar[int] = _errno.EIO

    def __str__(self) -> str:
        detail = super().__str__()
        name = os.strerror(self.errno)
        return f"{name}: {detail}" if detail else name


class NotFound(WrkfsError):
    """No such name or inode."""

    errno = _errno.ENOENT


class Exists(WrkfsError):
    """The name already exists."""

    errno = _errno.EEXIST


class NotDirectory(WrkfsError):
    """The inode is not a directory."""

    errno = _errno.ENOTDIR


class IsDirectory(WrkfsError):
    """The inode is a directory, and the operation needs a file."""

    errno = _errno.EISDIR


class NotEmpty(WrkfsError):
    """The directory has entries."""

    errno = _errno.ENOTEMPTY


class NameTooLong(WrkfsError):
    """The name is longer than NAME_MAX, or the path longer than PATH_MAX."""

    errno = _errno.ENAMETOOLONG


class TooManyLinks(WrkfsError):
    """The inode has 65,000 names."""

    errno = _errno.EMLINK


class SymlinkLoop(WrkfsError):
    """The path contains more than 40 symbolic links."""

    errno = _errno.ELOOP


class InvalidArgument(WrkfsError):
    """The call is invalid (a directory moved into itself, bad flags)."""

    errno = _errno.EINVAL


class NotPermitted(WrkfsError):
    """The operation is not allowed on this kind of object."""

    errno = _errno.EPERM


class AccessDenied(WrkfsError):
    """Permission bits refuse the operation."""

    errno = _errno.EACCES


class NotSupported(WrkfsError):
    """The drive does not support this operation."""

    errno = _errno.ENOTSUP


class NoData(WrkfsError):
    """The extended attribute does not exist."""

    errno = _errno.ENODATA


class OutOfRange(WrkfsError):
    """The caller's buffer is too small, or a value is too large."""

    errno = _errno.ERANGE


class NoSuchAddress(WrkfsError):
    """The file has no data, or no hole, at or behind the offset."""

    errno = _errno.ENXIO


class FileTooBig(WrkfsError):
    """The file would exceed the maximum size."""

    errno = _errno.EFBIG


class ArgumentTooBig(WrkfsError):
    """An extended attribute's value is above the limit."""

    errno = _errno.E2BIG


class Busy(WrkfsError):
    """The object is in use."""

    errno = _errno.EBUSY


class NoSpace(WrkfsError):
    """The store is full."""

    errno = _errno.ENOSPC


class QuotaExceeded(WrkfsError):
    """The volume's quota of bytes or inodes is used up."""

    errno = _errno.EDQUOT


class Stale(WrkfsError):
    """The inode no longer exists."""

    errno = _errno.ESTALE


class BadDescriptor(WrkfsError):
    """The handle is closed, or its access mode does not permit the call."""

    errno = _errno.EBADF


class PreconditionFailed(WrkfsError):
    """The file has another version than the caller requires."""

    errno = _errno.ECANCELED


class ReadOnly(WrkfsError):
    """The inode belongs to a snapshot, which cannot change."""

    errno = _errno.EROFS


class CrossesDevices(WrkfsError):
    """A file of a snapshot cannot get a name outside it; programs copy the file instead."""

    errno = _errno.EXDEV


class WouldBlock(WrkfsError):
    """Another owner holds a conflicting lock."""

    errno = _errno.EAGAIN


class Deadlock(WrkfsError):
    """The wait for the lock would close a circle of processes that wait for each other."""

    errno = _errno.EDEADLK


class Interrupted(WrkfsError):
    """A signal ended the wait for a lock."""

    errno = _errno.EINTR


class NoLocks(WrkfsError):
    """The session has too many locks, or it lost the lock."""

    errno = _errno.ENOLCK


class StorageError(WrkfsError):
    """The database or the object store failed."""


class Corrupt(StorageError):
    """The object store returned different bytes than were written, or none."""


class Missing(Corrupt):
    """The object does not exist: it is lost, or a compaction has replaced it."""


class Unavailable(StorageError):
    """The database or the object store did not answer within the deadline."""


class Fenced(StorageError):
    """The session has expired for good. The call changed nothing."""


class Doubtful(StorageError):
    """The outcome is unknown: the answer was lost, and then the session was fenced."""


def by_errno(number: int, detail: str = "") -> WrkfsError:
    """Return the error for an errno of a SQL function; StorageError for unknown numbers."""
    return _BY_ERRNO.get(number, StorageError)(detail)


_BY_ERRNO: dict[int, type[WrkfsError]] = {
    cls.errno: cls for cls in WrkfsError.__subclasses__() if cls is not StorageError
}
