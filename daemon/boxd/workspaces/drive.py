"""Drives for surfaces of this process: whole-path verbs over `wrkfs.fs.Filesystem`.

What HTTP and MCP do with a drive stands here once: look, list, read a range, put a whole file,
make a directory, remove. Failures are the service's errors. No cache: each call asks the volume.
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
    from wrkfs.types import Attr

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
"""Bytes of one read, which a slow client holds in memory.

*Measured* over HTTP from memory: 0.53 s of CPU per GB, against 0.62 with 256 KiB; more wins little.
"""
GATHERED = 64 * 1024 * 1024
"""Bytes of uploads that wait to become whole blocks, of all uploads together."""
READDIR_BATCH = 1000
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
OPEN_TRIES = 50
CHANGE_TRIES = 50
"""How often a condition is checked anew when somebody was faster."""
SECOND = 1_000_000_000
_ROOT_STAYS = "the root of the drive cannot be removed; remove what is in it"
PATIENCE = 80.0
"""Seconds that one step of a verb may take on the drive. Each call of its stores gives up after 60;
a step makes several, and in an outage that comes and goes they would add up."""
PARENT_TRIES = 3
"""Directories that vanish between being made and being used are made again this often."""
BOX_ROOT = Caller(0, 0)
"""Files made from outside belong to root, as those that a box makes by default."""

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
    (drive_errors.NameTooLong, BadRequest),
    (drive_errors.InvalidArgument, BadRequest),
    (drive_errors.FileTooBig, TooLarge),
    (drive_errors.NoSpace, DriveFull),
    (drive_errors.QuotaExceeded, DriveFull),
    (drive_errors.PreconditionFailed, PreconditionFailed),
    (drive_errors.Unavailable, Unavailable),
    (drive_errors.Fenced, Unavailable),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a directory listing. Sizes in bytes; a symbolic link is listed as itself."""

    name: bytes
    is_dir: bool
    size: int


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that a path leads to."""

    ino: Ino


@dataclass(frozen=True, slots=True)
class Written:
    """What a put did."""

    created: bool
    tag: str


@dataclass(frozen=True, slots=True)
class Pin:
    """What `publish` must find: that inode and version, or nothing."""

    version: tuple[Ino, int] | None
    absent: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a change, or for an answer.

    `match`: there is a file whose tag it accepts. `unless`: there is no file whose tag it accepts.
    `absent`: nothing is there. `unchanged_since` (seconds since the epoch): what is there has not
    been modified after that second; it does not count beside `match`, which is exact.
    """

    match: Callable[[str], bool] | None = None
    unless: Callable[[str], bool] | None = None
    absent: bool = False
    unchanged_since: int | None = None

    def check(self, present: Attr | None, what: str) -> None:
        """Raises PreconditionFailed when it does not hold for what is there."""
        tag = None if present is None else entity_tag(present)
        late = self.unchanged_since if self.match is None else None
        failed = (
            (self.absent and tag is not None)
            or (self.match is not None and (tag is None or not self.match(tag)))
            or (self.unless is not None and tag is not None and self.unless(tag))
            or (late is not None and present is not None and present.mtime_ns // SECOND > late)
        )
        if failed:
            now = "nothing is there" if tag is None else f"it is {tag} now"
            raise PreconditionFailed(f"{what}: the precondition does not hold; {now}")

    def pin(self, present: Attr | None) -> Pin:
        """What must still be so when the change happens, for what was checked to hold still."""
        if self == ALWAYS:
            return Pin(None, False)
        if present is None:
            return Pin(None, True)
        return Pin((present.ino, present.version), False)


ALWAYS = Condition()


def entity_tag(attr: Attr) -> str:
    """A strong entity tag, quotes included: equal tags mean equal bytes."""
    return f'"{attr.ino}-{attr.version}"'


class Gathering:
    """Gathers what clients send into whole blocks.

    What is written in small pieces is committed ten times a second, each time as an object of its
    own: a slow upload would become thousands of small ones. All gathering together holds at most
    `limit` bytes; above it, pieces are passed on as they come.

    Critical section: `held` changes without an await in between.
    """

    def __init__(self, limit: int = GATHERED) -> None:
        self.held = 0
        self._limit = limit

    async def blocks(
        self, body: Callable[[], Awaitable[bytes | None]]
    ) -> AsyncGenerator[bytes | memoryview, None]:
        """The bytes of `body`; what it raises ends this too. A view is good until the next one."""
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


_GATHERING = Gathering()


class OpenFile:
    """A file open for reading. Its bytes, size, tag and time are those at the moment of opening."""

    def __init__(self, handle: FileHandle, patience: float = PATIENCE) -> None:
        self._handle = handle
        self._patience = patience
        self.attr = handle.attr
        self.size = handle.attr.size
        self.mtime_ns = handle.attr.mtime_ns
        self.tag = entity_tag(handle.attr)

    async def pieces(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """The bytes [start, stop), in pieces; Unavailable when some of them are gone."""
        at = start
        while at < stop:
            async with step("read", self._patience):
                # Copied: a view would hold a whole block for as long as a slow client takes. What
                # comes next is on its way by read-ahead.
                data = await self._handle.read(at, min(PIECE, stop - at))
            if not data:
                raise Unavailable("the file ended before the size that was announced")
            at += len(data)
            yield data


class Drive:
    """The verbs over one volume. Paths are bytes, already percent-decoded, relative to /wrk."""

    def __init__(self, fs: Filesystem, *, patience: float = PATIENCE) -> None:
        """`patience`: seconds after which a step ends with Unavailable."""
        self._fs = fs
        self._patience = patience

    async def entries(self, directory: Directory) -> list[Entry]:
        """All entries of a directory, sorted by name."""
        entries, after = [], 0
        while True:
            async with self._step("directory", missing=True):
                batch = await self._fs.readdir(directory.ino, after, READDIR_BATCH)
            if not batch:
                break
            entries += [Entry(d.name, d.attr.is_dir, d.attr.size) for d in batch]
            after = batch[-1].cookie
        entries.sort(key=lambda entry: entry.name)
        return entries

    @asynccontextmanager
    async def at(self, path: bytes) -> AsyncIterator[OpenFile | Directory]:
        """What a path leads to, links followed; a file is open while the context lasts.

        NotFound, also below a file and for what is neither file nor directory.
        """
        what = _what(path)
        async with self._step(what, missing=True):
            found = await self._opened(path, what)
        if isinstance(found, Directory):
            yield found
            return
        async with self._closing(found, what):
            yield OpenFile(found, self._patience)

    async def put(
        self, path: bytes, body: Callable[[], Awaitable[bytes | None]], condition: Condition
    ) -> Written:
        """Writes a whole file, all or nothing: until all of `body` came, nothing changes.

        `body` gives the next bytes, None at the end; what it raises ends the put. The condition is
        checked before anything is read, and still holds when the new file appears:
        PreconditionFailed otherwise. Parents are made. Conflict when a directory is in the way or
        a parent is a file.
        """
        what = _what(path)
        async with self._step(what):
            before = await self._target(path)
            if before is not None and not before.is_file:
                raise Conflict(f"{what} is there and is not a file")
            condition.check(before, what)
            handle = await self._fs.create_unlinked(FILE_MODE, BOX_ROOT)
        async with self._closing(handle, what):
            at = 0
            async with aclosing(_GATHERING.blocks(body)) as pieces:
                async for data in pieces:
                    async with self._step(what):
                        at += await handle.write(at, data)
            async with self._step(what):
                await handle.fsync()
                # Before the file has a name, so that nobody else's write is in the tag.
                attr = await self._fs.getattr(handle.ino)
                created = await self._publish_if(path, handle.ino, condition, before)
        return Written(created, entity_tag(attr))

    async def make_directory(self, path: bytes) -> bool:
        """Makes a directory with its parents; False when it was there. Conflict for a file."""
        since = self._fs.losses
        async with self._step(_what(path)):
            made = await self._directories(paths.split(path))
            await self._fs.sync(since)
        return made

    async def delete(self, path: bytes, condition: Condition) -> None:
        """Removes a file, a directory with all in it, or a link itself. BadRequest for the root.

        What is removed is what the condition was checked against. NotFound, PreconditionFailed.
        """
        what = _what(path)
        since = self._fs.losses
        async with self._step(what, missing=True):
            for _ in range(CHANGE_TRIES):
                found = await paths.resolve(self._fs, path, follow=False)
                if not found.name:
                    raise BadRequest(_ROOT_STAYS)
                if found.attr is None:
                    raise drive_errors.NotFound
                if path.endswith(b"/") and not found.attr.is_dir:
                    raise NotFound(f"{what} is not a directory")
                condition.check(found.attr, what)
                wanted = condition.pin(found.attr).version
                try:
                    await self._fs.remove_tree(found.parent, found.name, if_version=wanted)
                except drive_errors.PreconditionFailed:
                    continue
                await self._fs.sync(since)
                return
            raise PreconditionFailed(f"{what} changes all the time; try again")

    def _step(self, what: str, *, missing: bool = False) -> AbstractAsyncContextManager[None]:
        return step(what, self._patience, missing=missing)

    @asynccontextmanager
    async def _closing(self, handle: FileHandle, what: str) -> AsyncIterator[None]:
        """Closes a handle after the body; after a failure nobody waits for that."""
        async with self._unless_failed(handle):
            yield
        async with self._step(what):
            await handle.close()

    @asynccontextmanager
    async def _unless_failed(self, handle: FileHandle) -> AsyncIterator[None]:
        """Closes a handle in the background when the body fails."""
        try:
            yield
        except BaseException:
            _ENDING.start(_close(handle), name="close of a file")
            raise

    async def _existing(self, path: bytes) -> Attr:
        found = await paths.resolve(self._fs, path)
        if found.attr is None or (path.endswith(b"/") and not found.attr.is_dir):
            raise drive_errors.NotFound
        return found.attr

    async def _opened(self, path: bytes, what: str) -> FileHandle | Directory:
        """A name that is being replaced may lead to a file that is just gone: then looks again."""
        for _ in range(OPEN_TRIES):
            attr = await self._existing(path)
            if attr.is_dir:
                return Directory(attr.ino)
            if not attr.is_file:
                raise NotFound(f"{what} is neither a file nor a directory")
            try:
                found = await self._fs.open_snapshot(attr.ino)
            except (drive_errors.NotFound, drive_errors.Stale):
                continue
            async with self._unless_failed(found):
                # A version that a crash of the database undoes is given again, to other bytes:
                # nobody may know its tag.
                if await self._fs.make_durable():
                    return found
            await found.close()
        raise Unavailable(f"{what} is being replaced all the time; try again")

    async def _target(self, path: bytes) -> Attr | None:
        """What a put would replace; None also when parents are missing."""
        try:
            return (await paths.resolve(self._fs, path)).attr
        except drive_errors.NotFound:
            return None

    async def _publish_if(
        self, path: bytes, ino: Ino, condition: Condition, before: Attr | None
    ) -> bool:
        """Publishes while the condition holds: what was checked is what is replaced.

        Somebody may change the file after the check in a way that the condition allows.
        """
        what = _what(path)
        for _ in range(CHANGE_TRIES):
            try:
                return await self._publish(path, ino, condition.pin(before))
            except drive_errors.PreconditionFailed:
                before = await self._target(path)
                condition.check(before, what)
        raise PreconditionFailed(f"{what} changes all the time; try again")

    async def _publish(self, path: bytes, ino: Ino, pin: Pin) -> bool:
        """Gives the written file its name; makes parents that are missing."""
        parents = paths.split(path)[:-1]
        for last in (False,) * PARENT_TRIES + (True,):
            try:
                found = await paths.resolve(self._fs, path)
                if not found.name:
                    raise drive_errors.IsDirectory
                return await self._fs.publish(
                    ino, found.parent, found.name, if_version=pin.version, if_absent=pin.absent
                )
            except (drive_errors.NotFound, drive_errors.Stale):
                if last:
                    raise
                await self._directories(parents)
        raise AssertionError("the last try returns or raises")

    async def _directories(self, segments: list[bytes]) -> bool:
        """mkdir -p; True when the last one was made just now."""
        made = False
        for depth in range(await self._depth(segments) + 1, len(segments) + 1):
            found = await paths.resolve(self._fs, b"/".join(segments[:depth]))
            made = found.attr is None
            if found.attr is None:
                try:
                    await self._fs.mkdir(found.parent, found.name, DIRECTORY_MODE, BOX_ROOT)
                except drive_errors.Exists:
                    made = False
            elif not found.attr.is_dir:
                raise drive_errors.NotDirectory
        return made

    async def _depth(self, segments: list[bytes]) -> int:
        """How many of the leading segments are directories already."""
        for depth in range(len(segments), 0, -1):
            try:
                found = await paths.resolve(self._fs, b"/".join(segments[:depth]))
            except drive_errors.NotFound:
                continue
            if found.attr is not None:
                if not found.attr.is_dir:
                    raise drive_errors.NotDirectory
                return depth
        return 0


class NoDrive(Drive):
    """The drive of a workspace that nobody has used yet: looks as an empty one."""

    def __init__(self) -> None:
        """There is no volume, and looking makes none."""

    async def entries(self, directory: Directory) -> list[Entry]:
        """None."""
        del directory
        return []

    @asynccontextmanager
    async def at(self, path: bytes) -> AsyncIterator[OpenFile | Directory]:
        """The root; NotFound for all else."""
        what = _what(path)
        with translated(what):
            below = paths.split(path)
        if below:
            raise NotFound(f"{what}: nothing is there")
        yield Directory(ROOT_INO)

    async def delete(self, path: bytes, condition: Condition) -> None:
        """NotFound; BadRequest for the root."""
        del condition
        async with self.at(path):
            raise BadRequest(_ROOT_STAYS)

    async def put(
        self, path: bytes, body: Callable[[], Awaitable[bytes | None]], condition: Condition
    ) -> Written:
        """Never: who writes asks for the volume to be made."""
        raise Unavailable("the drive is not there yet")

    async def make_directory(self, path: bytes) -> bool:
        """Never: see `put`."""
        raise Unavailable("the drive is not there yet")


_ENDING = BackgroundTasks()
"""Handles of verbs that failed, on their way out; `Filesystem.close` waits for them."""


async def _close(handle: FileHandle) -> None:
    # What was wrong has been told by the verb.
    with suppress(drive_errors.WrkfsError):
        await handle.close()


@asynccontextmanager
async def step(what: str, patience: float, *, missing: bool = False) -> AsyncIterator[None]:
    """As `translated`; also Unavailable when the body takes longer than `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            with translated(what, missing=missing):
                yield
    except TimeoutError as error:
        raise Unavailable(
            f"{what}: no end within {patience:g} s; look what is there before you try again"
        ) from error


@contextmanager
def translated(what: str, *, missing: bool = False) -> Iterator[None]:
    """Turns the drive's errors into the service's; with `missing` a file as parent is NotFound."""
    try:
        yield
    except drive_errors.WrkfsError as error:
        if missing and isinstance(error, drive_errors.NotDirectory):
            raise NotFound(f"{what} is not there: a file stands in its path") from error
        for known, translation in _STATUS:
            if isinstance(error, known):
                raise translation(f"{what}: {error}") from error
        raise


def _what(path: bytes) -> str:
    """A path as it is shown in an error."""
    return shown("/" + path.strip(b"/").decode("utf-8", "surrogateescape"))
