"""Operations on a drive by path, for HTTP and MCP, over `wrkfs.fs.Filesystem`.

The operations look up, list, read a range, write a whole file, create a directory, and remove.
Errors are those of the service. There is no cache: each call asks the volume.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from boxd.errors import (
    BadRequest,
    BoxdError,
    Conflict,
    DriveFull,
    NotFound,
    PreconditionFailed,
    TooLarge,
    Unavailable,
)
from boxd.names.words import shown
from boxd.tasks import BackgroundTasks
from wrkfs import errors as drive_errors
from wrkfs import paths
from wrkfs.fs import Filesystem
from wrkfs.layout import BLOCK_SIZE
from wrkfs.types import ROOT_INO, Caller, Ino

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from wrkfs.handle import FileHandle
    from wrkfs.types import Attr, Dentry

__all__ = [
    "Condition",
    "Directory",
    "Drive",
    "Entry",
    "Filesystem",
    "NoDrive",
    "OpenFile",
    "Written",
]

PIECE = 1024 * 1024
"""Maximum size of one read, in bytes. A slow client keeps this much in memory.

*Measured* over HTTP from memory: 0.53 s of CPU per GB, compared with 0.62 s for 256 KiB. A larger
size gains little.
"""
MAX_BUFFERED = 64 * 1024 * 1024
"""Maximum size of all upload pieces that wait to become whole blocks, in bytes."""
READDIR_BATCH = 1000
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
OPEN_TRIES = 50
CHANGE_TRIES = 50
"""Number of times that a condition is checked again after a concurrent change."""
SECOND = 1_000_000_000
_ROOT_STAYS = "the root of the drive cannot be removed; remove its content instead"
PATIENCE = 80.0
"""Seconds for one step of an operation on the drive.

Each call of the stores fails after 60 s. A step makes several calls, and during an intermittent
outage their times would add up.
"""
PARENT_TRIES = 3
"""Number of attempts to create missing parents that another client removes before their use."""
BOX_ROOT = Caller(0, 0)
"""Files that clients outside a box create belong to root, as files of a box do by default."""

_STATUS: tuple[tuple[type[drive_errors.WrkfsError], type[BoxdError]], ...] = (
    (drive_errors.NotFound, NotFound),
    (drive_errors.Stale, NotFound),
    (drive_errors.SymlinkLoop, NotFound),
    (drive_errors.NotDirectory, Conflict),
    (drive_errors.IsDirectory, Conflict),
    (drive_errors.Exists, Conflict),
    (drive_errors.NotEmpty, Conflict),
    (drive_errors.TooManyLinks, Conflict),
    (drive_errors.Busy, Conflict),
    (drive_errors.NotPermitted, Conflict),
    (drive_errors.ReadOnly, Conflict),
    (drive_errors.NameTooLong, BadRequest),
    (drive_errors.InvalidArgument, BadRequest),
    (drive_errors.FileTooBig, TooLarge),
    (drive_errors.ArgumentTooBig, TooLarge),
    (drive_errors.NoSpace, DriveFull),
    (drive_errors.QuotaExceeded, DriveFull),
    (drive_errors.PreconditionFailed, PreconditionFailed),
    (drive_errors.Unavailable, Unavailable),
    (drive_errors.Fenced, Unavailable),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory. A symbolic link is listed as itself.

    `size` is in bytes, `mtime_ns` in nanoseconds since the epoch. `tag` is the entity tag of a
    file; None: a directory or a link.
    """

    name: bytes
    is_dir: bool
    size: int
    mtime_ns: int
    tag: str | None


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory at a path."""

    ino: Ino


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a put: whether the file is new, and its entity tag."""

    created: bool
    tag: str


@dataclass(frozen=True, slots=True)
class Pin:
    """The state that `publish` requires: this inode and version, or no file."""

    version: tuple[Ino, int] | None
    absent: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """The precondition of a change or an answer.

    `match`: a file exists and its tag is accepted. `unless`: no file exists whose tag is accepted.
    `absent`: nothing exists at the path. `unchanged_since` (seconds since the epoch): the file was
    not modified after that second; ignored if `match` is set, which is exact.
    """

    match: Callable[[str], bool] | None = None
    unless: Callable[[str], bool] | None = None
    absent: bool = False
    unchanged_since: int | None = None

    def check(self, present: Attr | None, label: str) -> None:
        """Raise PreconditionFailed if the condition does not hold for the attributes `present`."""
        tag = None if present is None else entity_tag(present)
        since = self.unchanged_since if self.match is None else None
        failed = (
            (self.absent and tag is not None)
            or (self.match is not None and (tag is None or not self.match(tag)))
            or (self.unless is not None and tag is not None and self.unless(tag))
            or (since is not None and present is not None and present.mtime_ns // SECOND > since)
        )
        if failed:
            state = "the path does not exist" if tag is None else f"its tag is {tag}"
            raise PreconditionFailed(f"{label}: the precondition does not hold; {state}")

    def pin(self, present: Attr | None) -> Pin:
        """Return the state that must be unchanged when the change happens."""
        if self == ALWAYS:
            return Pin(None, False)
        if present is None:
            return Pin(None, True)
        return Pin((present.ino, present.version), False)


ALWAYS = Condition()


def entity_tag(attr: Attr) -> str:
    """Return a strong entity tag with its quotes. Equal tags mean equal bytes."""
    return f'"{attr.ino}-{attr.version}"'


class UploadBuffer:
    """Collects the pieces of uploads into whole blocks.

    The drive commits small writes ten times a second, each time as a new object. So without this
    buffer a slow upload would become thousands of small objects. All uploads together buffer at
    most `limit` bytes. Above the limit, pieces pass through unchanged.

    Critical section: `held` changes without an await in between.
    """

    def __init__(self, limit: int = MAX_BUFFERED) -> None:
        self.held = 0
        self._limit = limit

    async def blocks(
        self, body: Callable[[], Awaitable[bytes | None]]
    ) -> AsyncGenerator[bytes | memoryview, None]:
        """Yield the bytes of `body`, and raise its errors. A view is valid until the next one."""
        parts: list[bytes] = []
        size = 0
        try:
            while (data := await body()) is not None:
                if self.held + len(data) > self._limit:
                    whole = b"".join([*parts, data])
                    self.held -= size
                    parts, size = [], 0
                    yield whole
                    continue
                parts.append(data)
                size += len(data)
                self.held += len(data)
                if size >= BLOCK_SIZE:
                    whole = b"".join(parts)
                    cut = size - size % BLOCK_SIZE
                    self.held -= cut
                    parts, size = [whole[cut:]], size - cut
                    yield memoryview(whole)[:cut]
            if size:
                yield b"".join(parts)
        finally:
            self.held -= size


_UPLOADS = UploadBuffer()


class OpenFile:
    """A file open for reading. Content, size, tag and time are those at the moment of opening."""

    def __init__(self, handle: FileHandle, patience: float = PATIENCE) -> None:
        self._handle = handle
        self._patience = patience
        self.attr = handle.attr
        self.size = handle.attr.size
        self.mtime_ns = handle.attr.mtime_ns
        self.tag = entity_tag(handle.attr)

    async def pieces(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes [start, stop) in pieces. Raises Unavailable if some are missing."""
        position = start
        while position < stop:
            async with step("read", self._patience):
                # This is a copy. A view would hold a whole block while a slow client reads it.
                # Read-ahead already fetches the next block.
                data = await self._handle.read(position, min(PIECE, stop - position))
            if not data:
                raise Unavailable("the file is shorter than its announced size; try again")
            position += len(data)
            yield data


class Drive:
    """Operations on one volume. Paths are bytes relative to /wrk, already percent-decoded."""

    def __init__(self, fs: Filesystem, *, patience: float = PATIENCE) -> None:
        """A step fails with Unavailable after `patience` seconds."""
        self._fs = fs
        self._patience = patience

    async def entries(self, directory: Directory) -> list[Entry]:
        """Return all entries of a directory, sorted by name."""
        for _ in range(OPEN_TRIES):
            entries = await self._read_entries(directory)
            # As in `_open`: a tag must not leave before its version is durable.
            async with self._step("directory"):
                if all(entry.tag is None for entry in entries) or await self._fs.make_durable():
                    return sorted(entries, key=lambda entry: entry.name)
        raise Unavailable("the database of the drive crashes all the time; try again")

    async def _read_entries(self, directory: Directory) -> list[Entry]:
        entries, after = list[Entry](), 0
        while True:
            async with self._step("directory", missing=True):
                batch = await self._fs.readdir(directory.ino, after, READDIR_BATCH)
            if not batch:
                return entries
            entries += [_entry(item) for item in batch]
            after = batch[-1].cookie

    @asynccontextmanager
    async def at(self, path: bytes) -> AsyncIterator[OpenFile | Directory]:
        """Yield the file or directory at a path, following links.

        A file is open while the context lasts. Raises NotFound, even if a parent is a file, or if
        the path is neither a file nor a directory.
        """
        label = _label(path)
        async with self._step(label, missing=True):
            target = await self._open(path, label)
        if isinstance(target, Directory):
            yield target
            return
        async with self._closing(target, label):
            yield OpenFile(target, self._patience)

    async def put(
        self, path: bytes, body: Callable[[], Awaitable[bytes | None]], condition: Condition
    ) -> Written:
        """Write a whole file atomically: nothing changes before `body` is complete.

        `body` returns the next bytes, and None at the end; its errors end the put. The method
        checks the condition before it reads anything, and again when the new file appears. It
        creates missing parents. Raises PreconditionFailed, and Conflict if the path is a directory
        or a parent is a file.
        """
        label = _label(path)
        async with self._step(label):
            before = await self._target(path)
            if before is not None and not before.is_file:
                raise Conflict(f"{label} is there and is not a file")
            condition.check(before, label)
            handle = await self._fs.create_unlinked(FILE_MODE, BOX_ROOT)
        async with self._closing(handle, label):
            size = 0
            async with aclosing(_UPLOADS.blocks(body)) as pieces:
                async for data in pieces:
                    async with self._step(label):
                        size += await handle.write(size, data)
            async with self._step(label):
                await handle.fsync()
                # The file has no name yet, so the tag cannot include a write of another client.
                attr = await self._fs.getattr(handle.ino)
                created = await self._publish_if(path, handle.ino, condition, before)
        return Written(created, entity_tag(attr))

    async def make_directory(self, path: bytes) -> bool:
        """Create a directory with its parents; return False if it exists.

        Raises Conflict if a file is in the path.
        """
        since = self._fs.losses
        async with self._step(_label(path)):
            created = await self._make_directories(paths.split(path))
            await self._fs.sync(since)
        return created

    async def delete(self, path: bytes, condition: Condition) -> None:
        """Remove a file, a directory with its content, or a link itself.

        Removes exactly the version that the condition accepted. Raises NotFound,
        PreconditionFailed, and BadRequest for the root.
        """
        label = _label(path)
        since = self._fs.losses
        async with self._step(label, missing=True):
            for _ in range(CHANGE_TRIES):
                entry = await paths.resolve(self._fs, path, follow=False)
                if not entry.name:
                    raise BadRequest(_ROOT_STAYS)
                if entry.attr is None:
                    raise drive_errors.NotFound
                if path.endswith(b"/") and not entry.attr.is_dir:
                    raise NotFound(f"{label} is not a directory")
                condition.check(entry.attr, label)
                version = condition.pin(entry.attr).version
                try:
                    await self._fs.remove_tree(entry.parent, entry.name, if_version=version)
                except drive_errors.PreconditionFailed:
                    continue
                await self._fs.sync(since)
                return
            raise PreconditionFailed(f"{label} keeps changing; try again")

    def _step(self, label: str, *, missing: bool = False) -> AbstractAsyncContextManager[None]:
        return step(label, self._patience, missing=missing)

    @asynccontextmanager
    async def _closing(self, handle: FileHandle, label: str) -> AsyncIterator[None]:
        """Close a handle after the body; in the background if the body fails."""
        async with self._unless_failed(handle):
            yield
        async with self._step(label):
            await handle.close()

    @asynccontextmanager
    async def _unless_failed(self, handle: FileHandle) -> AsyncIterator[None]:
        """Close a handle in the background if the body fails."""
        try:
            yield
        except BaseException:
            _CLOSING.start(_close(handle), name="close of a file")
            raise

    async def _existing(self, path: bytes) -> Attr:
        entry = await paths.resolve(self._fs, path)
        if entry.attr is None or (path.endswith(b"/") and not entry.attr.is_dir):
            raise drive_errors.NotFound
        return entry.attr

    async def _open(self, path: bytes, label: str) -> FileHandle | Directory:
        # If the name is replaced between lookup and open, the old file may be gone. In that case
        # the loop looks the path up again.
        for _ in range(OPEN_TRIES):
            attr = await self._existing(path)
            if attr.is_dir:
                return Directory(attr.ino)
            if not attr.is_file:
                raise NotFound(f"{label} is neither a file nor a directory")
            try:
                handle = await self._fs.open_snapshot(attr.ino)
            except (drive_errors.NotFound, drive_errors.Stale):
                continue
            async with self._unless_failed(handle):
                # A crash of the database can undo a version, and its number is then reused for
                # other bytes. So the tag of a version must not leave before the version is durable.
                if await self._fs.make_durable():
                    return handle
            await handle.close()
        raise Unavailable(f"{label} is being replaced all the time; try again")

    async def _target(self, path: bytes) -> Attr | None:
        """Return the file that a put would replace; None if it or a parent is missing."""
        try:
            return (await paths.resolve(self._fs, path)).attr
        except drive_errors.NotFound:
            return None

    async def _publish_if(
        self, path: bytes, ino: Ino, condition: Condition, before: Attr | None
    ) -> bool:
        """Publish only over the version that the condition accepted.

        Checks again after a concurrent change, which the condition may allow.
        """
        label = _label(path)
        for _ in range(CHANGE_TRIES):
            try:
                return await self._publish(path, ino, condition.pin(before))
            except drive_errors.PreconditionFailed:
                before = await self._target(path)
                condition.check(before, label)
        raise PreconditionFailed(f"{label} keeps changing; try again")

    async def _publish(self, path: bytes, ino: Ino, pin: Pin) -> bool:
        """Give the written file its name; create missing parents."""
        parents = paths.split(path)[:-1]
        for last in (False,) * PARENT_TRIES + (True,):
            try:
                entry = await paths.resolve(self._fs, path)
                if not entry.name:
                    raise drive_errors.IsDirectory
                return await self._fs.publish(
                    ino, entry.parent, entry.name, if_version=pin.version, if_absent=pin.absent
                )
            except (drive_errors.NotFound, drive_errors.Stale):
                if last:
                    raise
                await self._make_directories(parents)
        raise AssertionError("the last try returns or raises")

    async def _make_directories(self, segments: list[bytes]) -> bool:
        """Create the missing directories of a path; return whether the last one is new."""
        created = False
        for depth in range(await self._existing_depth(segments) + 1, len(segments) + 1):
            entry = await paths.resolve(self._fs, b"/".join(segments[:depth]))
            created = entry.attr is None
            if entry.attr is None:
                try:
                    await self._fs.mkdir(entry.parent, entry.name, DIRECTORY_MODE, BOX_ROOT)
                except drive_errors.Exists:
                    created = False
            elif not entry.attr.is_dir:
                raise drive_errors.NotDirectory
        return created

    async def _existing_depth(self, segments: list[bytes]) -> int:
        """Return how many of the leading segments are existing directories."""
        for depth in range(len(segments), 0, -1):
            try:
                entry = await paths.resolve(self._fs, b"/".join(segments[:depth]))
            except drive_errors.NotFound:
                continue
            if entry.attr is not None:
                if not entry.attr.is_dir:
                    raise drive_errors.NotDirectory
                return depth
        return 0


def _entry(item: Dentry) -> Entry:
    attr = item.attr
    tag = entity_tag(attr) if attr.is_file else None
    return Entry(item.name, attr.is_dir, attr.size, attr.mtime_ns, tag)


class NoDrive(Drive):
    """The drive of a workspace without a volume. It appears empty."""

    def __init__(self) -> None:
        """Reading does not create a volume."""

    async def entries(self, directory: Directory) -> list[Entry]:
        """Return no entries."""
        del directory
        return []

    @asynccontextmanager
    async def at(self, path: bytes) -> AsyncIterator[OpenFile | Directory]:
        """Yield the root. Raises NotFound for other paths."""
        label = _label(path)
        with translated(label):
            segments = paths.split(path)
        if segments:
            raise NotFound(f"{label}: nothing is there")
        yield Directory(ROOT_INO)

    async def delete(self, path: bytes, condition: Condition) -> None:
        """Raise NotFound, or BadRequest for the root."""
        del condition
        async with self.at(path):
            raise BadRequest(_ROOT_STAYS)

    async def put(
        self, path: bytes, body: Callable[[], Awaitable[bytes | None]], condition: Condition
    ) -> Written:
        """Raise Unavailable. Writers request a drive with `create`, so this is never called."""
        raise Unavailable("the drive does not exist yet; try again")

    async def make_directory(self, path: bytes) -> bool:
        """Raise Unavailable, as `put` does."""
        raise Unavailable("the drive does not exist yet; try again")


_CLOSING = BackgroundTasks()
"""Handles of failed operations that are being closed. `Filesystem.close` waits for them."""


async def _close(handle: FileHandle) -> None:
    # The operation has already reported its error.
    with suppress(drive_errors.WrkfsError):
        await handle.close()


@asynccontextmanager
async def step(label: str, patience: float, *, missing: bool = False) -> AsyncIterator[None]:
    """Like `translated`, and raise Unavailable if the body takes longer than `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            with translated(label, missing=missing):
                yield
    except TimeoutError as error:
        raise Unavailable(
            f"{label}: the drive did not finish within {patience:g} s; check the result before you "
            "try again"
        ) from error


@contextmanager
def translated(label: str, *, missing: bool = False) -> Iterator[None]:
    """Turn errors of the drive into errors of the service.

    With `missing`, a file as parent becomes NotFound.
    """
    try:
        yield
    except drive_errors.WrkfsError as error:
        if missing and isinstance(error, drive_errors.NotDirectory):
            raise NotFound(f"{label} does not exist: one of its parents is a file") from error
        for kind, translation in _STATUS:
            if isinstance(error, kind):
                raise translation(f"{label}: {error}") from error
        raise


def _label(path: bytes) -> str:
    """Return a path for an error."""
    return shown("/" + path.strip(b"/").decode("utf-8", "surrogateescape"))
