"""The trash of a drive: pages of removed entries, and restoring one of them.

The errors are those of the service. Paths are bytes relative to /wrk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from boxd.errors import BadRequest, Conflict, NotFound
from boxd.names import filenames
from boxd.names.words import shown
from boxd.workspaces.drive import step, translated
from wrkfs import errors as drive_errors
from wrkfs import paths
from wrkfs.layout import NAME_MAX, PATH_MAX
from wrkfs.types import Ino, TrashPosition
from wrkfs.upkeep import trash

if TYPE_CHECKING:
    from wrkfs.fs import Filesystem
    from wrkfs.upkeep.trash import RemovedEntry, RestoreResult

DEFAULT_PAGE = 100
"""Number of entries in one page of the list, unless the request says otherwise."""
MAX_PAGE = 1000
"""Maximum number of entries in one page."""
PAGE_BYTES = 1024 * 1024
"""Maximum size of one page, in bytes, by the estimate of `_size`."""
ENTRY_BYTES = 240
"""Estimated size of an entry as JSON without its path and name, in bytes."""
ESCAPED = 6
"""Maximum number of characters that JSON needs for one byte of a name."""
MAX_MISSING = 100
"""Maximum number of entries that the result of a restore names."""
PATIENCE = 50.0
"""Seconds for one page of the list. A program in a box waits 60 s for an answer."""
MAX_CURSOR = 1024
CURSOR = f"[0-9]{{1,16}}-[0-9]{{1,18}}-[0-9]{{1,18}}-([0-9a-f]{{2}}){{1,{NAME_MAX}}}"
"""Pattern of a cursor: time in microseconds, inode, directory, and the bytes of the name."""
MAX_NUMBER = 10**18 - 1
"""Maximum number of an entry."""
_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class TrashQuery:
    """A request for one page. `below` is a path: the page has only entries at or below it.

    `cursor` continues the list after an earlier page. `size` limits the page, in bytes of JSON.
    """

    below: bytes = b""
    cursor: str | None = None
    limit: int = DEFAULT_PAGE
    size: int = PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed file or directory. `size` is in bytes.

    `path` is None if a directory above it is no longer in the trash, or if the path is longer than
    a program can use. `is_link` is true for a further name of a file that had other names.
    """

    number: int
    path: bytes | None
    name: bytes
    is_dir: bool
    is_link: bool
    size: int
    deleted: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the JSON members of the entry. `path` begins with a slash."""
        path: dict[str, Any] = {"path": None}
        if self.path is not None:
            path = dict(filenames.members("path", b"/" + self.path))
        return {
            "number": self.number,
            **path,
            **filenames.members("name", self.name),
            "is_dir": self.is_dir,
            "is_link": self.is_link,
            "size": self.size,
            "deleted": self.deleted.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class TrashPage:
    """A part of the list, the newest entry first.

    `cursor` None: the list is complete. Otherwise it continues the list; a page with a cursor may
    have few entries, or none.
    """

    entries: list[Removed]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to restore the newest entry of a path, or the entry of a number.

    `to` is the new path; None: the entry is restored at its former path.
    """

    path: bytes | None = None
    number: int | None = None
    to: bytes | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: the path of the entry, and the number of files and directories.

    `missing` has paths that stay in the trash, with the reason, at most MAX_MISSING of them;
    `missing_count` is their number. `earlier_count` counts further names that were removed earlier
    than the tree; they stay in the trash too.
    """

    path: bytes
    files: int
    directories: int
    missing: list[tuple[bytes, str]]
    missing_count: int
    earlier_count: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON members of the result. Paths begin with a slash."""
        return {
            **filenames.members("path", b"/" + self.path),
            "files": self.files,
            "directories": self.directories,
            "missing": [
                {**filenames.members("path", b"/" + path), "reason": reason}
                for path, reason in self.missing
            ],
            "missing_count": self.missing_count,
            "earlier_count": self.earlier_count,
        }


async def read_page(
    fs: Filesystem | None, query: TrashQuery, *, patience: float = PATIENCE
) -> TrashPage:
    """Return one page of the trash. `fs` None: the drive was never used; its trash is empty.

    Raises BadRequest; Unavailable if the page takes longer than `patience` seconds.
    """
    if not 1 <= query.limit <= MAX_PAGE:
        raise BadRequest(f"limit must be 1 to {MAX_PAGE}")
    before = None if query.cursor is None else _position(query.cursor)
    with translated(_label(query.below)):
        below = b"/".join(paths.split(query.below))
    if fs is None:
        return TrashPage([], None)
    async with step("trash", patience):
        page = await trash.newest(fs, before, query.limit, below=below)
    entries: list[Removed] = []
    size, last = 0, before
    for one in page.entries:
        removed = _removed(one)
        size += _size(removed)
        if entries and size > query.size:
            return TrashPage(entries, None if last is None else _cursor(last))
        entries.append(removed)
        last = one.entry.position
    return TrashPage(entries, None if page.next is None else _cursor(page.next))


async def restore(fs: Filesystem | None, request: RestoreRequest) -> Restored:
    """Restore an entry with everything that was removed from it, and wait until it is durable.

    Nothing is replaced. Missing directories above the former path are restored too; the directory
    of `to` must exist. Raises BadRequest, NotFound, Conflict if the path exists, DriveFull. After
    an error, the entries that were restored before stay restored.
    """
    label = label_of(request)
    what, to = _checked(request)
    if fs is None:
        raise NotFound(f"{label}: the trash has no such entry")
    since = fs.losses
    with translated(label):
        try:
            result = await trash.restore(fs, what, to=to)
        except drive_errors.Exists:
            raise Conflict(
                f"{label}: {'the former path' if to is None else _label(to)} already exists; "
                "restore it to another path, or move the existing file away"
            ) from None
        await fs.sync(since)
    return _restored(result)


def check_request(request: RestoreRequest) -> None:
    """Raise BadRequest if a request does not name one entry, or if a path is not valid."""
    _checked(request)


def label_of(request: RestoreRequest) -> str:
    """Return the name of the requested entry, for an error."""
    return f"entry {request.number}" if request.path is None else _label(request.path)


def _checked(request: RestoreRequest) -> tuple[bytes | Ino, bytes | None]:
    """Return the path or number of the entry, and the new path. Raises BadRequest."""
    if (request.path is None) == (request.number is None):
        raise BadRequest("give the path or the number of a removed entry, not both")
    what: bytes | Ino
    if request.number is not None:
        if not 1 <= request.number <= MAX_NUMBER:
            raise BadRequest(f"number must be 1 to {MAX_NUMBER}; see the list of the trash")
        what = Ino(request.number)
    else:
        what = _path(request.path or b"")
    return what, None if request.to is None else _path(request.to)


def _path(path: bytes) -> bytes:
    """Return a path without superfluous slashes. Raises BadRequest."""
    label = _label(path)
    with translated(label):
        names = paths.split(path)
    if not names:
        raise BadRequest(f"{label} is the drive itself; give a path below it")
    return b"/".join(names)


def _removed(removed: RemovedEntry) -> Removed:
    entry, path = removed.entry, removed.path
    return Removed(
        number=entry.ino,
        path=path if path is not None and len(path) <= PATH_MAX else None,
        name=entry.name,
        is_dir=removed.is_dir,
        is_link=entry.linked,
        size=entry.size,
        deleted=entry.deleted_at.astimezone(UTC),
    )


def _size(removed: Removed) -> int:
    """Return the maximum size of an entry as JSON, in bytes."""
    return ENTRY_BYTES + ESCAPED * (len(removed.path or b"") + len(removed.name))


def _restored(result: RestoreResult) -> Restored:
    missing = sorted(result.missing.items())
    return Restored(
        path=result.path,
        files=result.files,
        directories=result.directories,
        missing=missing[:MAX_MISSING],
        missing_count=len(missing),
        earlier_count=len(result.earlier),
    )


def _cursor(position: TrashPosition) -> str:
    microseconds = (position.deleted_at - _EPOCH) // _MICROSECOND
    return f"{microseconds}-{position.ino}-{position.parent}-{position.name.hex()}"


def _position(cursor: str) -> TrashPosition:
    """Return the position of a cursor, which a client sent. Raises BadRequest."""
    if len(cursor) > MAX_CURSOR or re.fullmatch(CURSOR, cursor) is None:
        raise BadRequest("the cursor is not valid; pass the one of an earlier page")
    microseconds, ino, parent, name = cursor.split("-")
    deleted_at = _EPOCH + int(microseconds) * _MICROSECOND
    return TrashPosition(deleted_at, Ino(int(ino)), Ino(int(parent)), bytes.fromhex(name))


def _label(path: bytes) -> str:
    return shown("/" + path.strip(b"/").decode("utf-8", "surrogateescape"))
