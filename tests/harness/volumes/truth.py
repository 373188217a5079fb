"""The content of a drive from its database: a session without caches, on its own event loop."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import asyncpg

from wrkfs.errors import NotDirectory, NotFound
from wrkfs.fs import Filesystem
from wrkfs.paths import resolve
from wrkfs.types import Ino

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from wrkfs.config import VolumeConfig
    from wrkfs.types import Attr

    T = TypeVar("T")

Stat: TypeAlias = "tuple[int, ...]"
TIMEOUT = 100.0
MANY = 100_000


def stat_of(found: os.stat_result) -> Stat:
    """Return all attributes that a change must show; looks change the access time."""
    return (
        *(found.st_ino, found.st_mode, found.st_nlink, found.st_uid, found.st_gid),
        *(found.st_size, found.st_mtime_ns, found.st_ctime_ns),
    )


def _stat_of(attr: Attr) -> Stat:
    return (
        *(attr.ino, attr.mode, attr.nlink, attr.uid, attr.gid),
        *(attr.size, attr.mtime_ns, attr.ctime_ns),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """One path: attributes; bytes of a file, target of a link, names of a directory; xattrs."""

    stat: Stat
    content: bytes | str | list[str]
    xattrs: dict[str, bytes]

    @property
    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return isinstance(self.content, bytes)

    @property
    def is_dir(self) -> bool:
        """Return whether it is a directory."""
        return isinstance(self.content, list)


class Truth:
    """A blocking reader of the drive, for one thread."""

    def __init__(self, volume: VolumeConfig) -> None:
        self._dsn = volume.meta_dsn
        self._connection: asyncpg.Connection | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="truth")
        self._thread.start()
        try:
            self._fs = self._run(Filesystem.connect(volume, kind="http"))
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """End the session."""
        try:
            self._run(self._close())
        finally:
            self._end()

    async def _close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        await self._fs.close()

    def path(self, path: str) -> Seen | None:
        """Return the object at a path, or None."""
        return self._run(self._path(path))

    def inode(self, ino: int) -> Stat | None:
        """Return the attributes of an inode, even without a name, or None if it was freed."""
        try:
            attr = self._run(self._fs.getattr(Ino(ino)))
        except NotFound:
            return None
        return None if attr.is_dir and not attr.nlink else _stat_of(attr)

    def mounts(self) -> list[int]:
        """Return live sessions of mounts in the order of their start."""
        query = "SELECT session_id FROM session WHERE kind = 'mount' AND fenced_at IS NULL"
        return sorted(self._run(self._numbers(query)))

    def holders(self, ino: int) -> list[int]:
        """Return the sessions that have a lease on a directory."""
        return self._run(self._numbers("SELECT session_id FROM lease WHERE ino = $1", ino))

    def sustainers(self, ino: int) -> list[int]:
        """Return the sessions that have a file open according to the database."""
        return self._run(self._numbers("SELECT session_id FROM sustained WHERE ino = $1", ino))

    async def _numbers(self, query: str, *args: object) -> list[int]:
        """Query through a connection that stays open.

        The answer may change while a new connection opens. The server may have been killed since
        the last query.
        """
        if self._connection is not None:
            try:
                return [row[0] for row in await self._connection.fetch(query, *args)]
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                self._connection.terminate()
        self._connection = await asyncpg.connect(self._dsn)
        return [row[0] for row in await self._connection.fetch(query, *args)]

    async def _path(self, path: str) -> Seen | None:
        fs = self._fs
        try:
            attr = (await resolve(fs, path.encode(), follow=False)).attr
        except (NotFound, NotDirectory):
            return None
        if attr is None:
            return None
        content: bytes | str | list[str]
        if attr.is_dir:
            content = sorted(os.fsdecode(one.name) for one in await fs.readdir(attr.ino, 0, MANY))
        elif stat.S_ISLNK(attr.mode):
            content = os.fsdecode(await fs.readlink(attr.ino))
        else:
            handle = await fs.open(attr.ino, os.O_RDONLY)
            content = await handle.read(0, attr.size + 1)
            await handle.close()
        xattrs = {
            name.decode(): await fs.getxattr(attr.ino, name)
            for name in await fs.listxattr(attr.ino)
        }
        return Seen(_stat_of(attr), content, xattrs)

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()


@contextmanager
def truth_of(volume: VolumeConfig) -> Iterator[Truth]:
    """Yield a session."""
    made = Truth(volume)
    try:
        yield made
    finally:
        made.close()
