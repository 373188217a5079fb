"""Reads and writes files of a box, through the file server of its agent."""

from __future__ import annotations

import asyncio
import posixpath
import stat
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncssh

from boxd.errors import BadRequest, Conflict, DiskFull, Forbidden, NotFound, Unavailable
from boxd.names.words import shown
from boxd.secret import random_hex
from boxd.tunnel.channel import FAULTS, OPEN_S
from boxd.tunnel.opening import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from boxd.tunnel.channel import Tunnel

STEP_S = 60.0
"""Seconds within which the box must complete an operation."""
MAX_ENTRIES = 10_000
"""Maximum number of entries of a directory that can be listed."""
PIECE = 1024 * 1024
"""Bytes that one step reads."""
CLEANUP_S = 5.0
"""Seconds for the removal of an incomplete file."""
NEW_DIRECTORY = 0o755
NEW_FILE = 0o644


@dataclass(frozen=True, slots=True)
class Portion:
    """Part of a file.

    `size` is the size of the whole file in bytes, `mtime` in seconds since the epoch.
    """

    data: bytes
    size: int
    mtime: float
    eof: bool


@dataclass(frozen=True, slots=True)
class BoxEntry:
    """An entry of a directory. `size` is in bytes, `mtime` in seconds since the epoch.

    `mode` are the permission bits.
    """

    name: bytes
    is_dir: bool
    size: int
    mtime: float
    mode: int


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory: its entries, sorted by name."""

    entries: list[BoxEntry]


class OpenBoxFile:
    """A file of a box that is open for reading."""

    def __init__(
        self, file: asyncssh.SFTPClientFile, attrs: asyncssh.SFTPAttrs, path: bytes
    ) -> None:
        self._file = file
        self._path = path
        self.size = attrs.size or 0
        """The size in bytes."""
        self.mtime = float(attrs.mtime or 0)
        """The last change, in seconds since the epoch."""

    async def pieces(self, start: int, stop: int) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` to `stop`. Raises Unavailable if the file is shorter now."""
        while start < stop:
            async with _step(self._path):
                data = _bytes(await self._file.read(min(PIECE, stop - start), start))
            if not data:
                raise Unavailable(f"{_what(self._path)} was shortened while it was read")
            yield data
            start += len(data)


class BoxFiles:
    """The files of a box. Paths are bytes; relative ones start at the home of the box's account."""

    def __init__(self, client: asyncssh.SFTPClient) -> None:
        self._client = client

    async def read(self, path: bytes, offset: int, limit: int) -> Portion | Listing:
        """Return at most `limit` bytes from `offset`, or the listing if the path is a directory.

        Raises NotFound, Forbidden, and BadRequest if it is neither a file nor a directory.
        """
        async with _step(path):
            attrs = await self._client.stat(path)
            if attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY:
                return await self._list(path)
            if attrs.type != asyncssh.FILEXFER_TYPE_REGULAR:
                # A read from a pipe or a device may never return.
                raise BadRequest(f"{_what(path)} is neither a file nor a directory")
            async with self._client.open(path, "rb") as file:
                data = _bytes(await file.read(limit + 1, offset))
        eof = len(data) <= limit
        return Portion(data[:limit], attrs.size or 0, float(attrs.mtime or 0), eof)

    async def _list(self, path: bytes) -> Listing:
        entries: list[BoxEntry] = []
        async for entry in self._client.scandir(path):
            if entry.filename in (b".", b".."):
                continue
            if len(entries) == MAX_ENTRIES:
                raise BadRequest(f"{_what(path)} has more than {MAX_ENTRIES} entries; use box_exec")
            entries.append(_entry(_bytes(entry.filename), entry.attrs))
        return Listing(sorted(entries, key=lambda entry: entry.name))

    @asynccontextmanager
    async def reading(self, path: bytes) -> AsyncIterator[OpenBoxFile | Listing]:
        """Yield an open file, or the listing of a directory. Raises what `read` raises."""
        async with AsyncExitStack() as stack:
            async with _step(path):
                attrs = await self._client.stat(path)
                item: OpenBoxFile | Listing
                if attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY:
                    item = await self._list(path)
                elif attrs.type != asyncssh.FILEXFER_TYPE_REGULAR:
                    raise BadRequest(f"{_what(path)} is neither a file nor a directory")
                else:
                    opening = self._client.open(path, "rb")
                    item = OpenBoxFile(await stack.enter_async_context(opening), attrs, path)
            yield item

    async def put(
        self, path: bytes, body: Callable[[], Awaitable[bytes | None]], mode: int | None
    ) -> bool:
        """Replace a file atomically with the bytes of `body`; return whether it is new.

        `body` returns the next bytes, and None at the end; its errors end the put, and the old file
        stays. Otherwise as `write`.
        """
        async with _step(path):
            target, before = await self._target(path)
            mode = _permissions(before) if mode is None else mode
            temporary = _temporary(target)
            file = await self._client.open(temporary, "xb")
        try:
            async with file:
                while (data := await body()) is not None:
                    async with _step(path):
                        await file.write(data)
                async with _step(path):
                    await file.fsync()
            async with _step(path):
                await self._client.chmod(temporary, mode)
                await self._client.posix_rename(temporary, target)
        except BaseException:
            with suppress(asyncssh.SFTPError, *FAULTS):
                async with asyncio.timeout(CLEANUP_S):
                    await self._client.remove(temporary)
            raise
        return before is None

    async def make_directory(self, path: bytes) -> bool:
        """Create a directory with its parents; return whether it is new. Raises Conflict."""
        async with _step(path):
            before = await self._present(path)
            if before is not None and before.type != asyncssh.FILEXFER_TYPE_DIRECTORY:
                raise Conflict(f"{_what(path)} exists and is not a directory")
            attrs = asyncssh.SFTPAttrs(permissions=NEW_DIRECTORY)
            await self._client.makedirs(path, attrs, exist_ok=True)
        return before is None

    async def remove(self, path: bytes) -> None:
        """Remove a file, a link itself, or a directory with its content. Raises NotFound."""
        async with _step(path):
            attrs = await self._client.lstat(path)
            if attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY:
                await self._client.rmtree(path)
            else:
                await self._client.remove(path)

    async def write(
        self, path: bytes, data: bytes, mode: int | None, *, append: bool
    ) -> tuple[int, bool]:
        """Replace a file atomically, or append to it. Return its new size and whether it is new.

        `mode` None keeps the permissions. Follows links, and creates parent directories. Raises
        NotFound, Forbidden, Conflict, DiskFull.
        """
        async with _step(path):
            target, before = await self._target(path)
            if append:
                await self._add(target, data)
            else:
                mode = _permissions(before) if mode is None else mode
                await self._replace(target, data, mode)
            return (await self._client.stat(target)).size or 0, before is None

    async def _target(self, path: bytes) -> tuple[bytes, asyncssh.SFTPAttrs | None]:
        """Return the path of a file behind links, and its attributes if it exists.

        Creates its parent directories. Raises Conflict if it exists and is not a file.
        """
        target = _bytes(await self._client.realpath(path))
        before = await self._present(target)
        if before is not None and before.type != asyncssh.FILEXFER_TYPE_REGULAR:
            raise Conflict(f"{_what(path)} exists and is not a file")
        if before is None:
            attrs = asyncssh.SFTPAttrs(permissions=NEW_DIRECTORY)
            await self._client.makedirs(posixpath.dirname(target), attrs, exist_ok=True)
        return target, before

    async def _present(self, target: bytes) -> asyncssh.SFTPAttrs | None:
        with suppress(asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            return await self._client.stat(target)
        return None

    async def _add(self, target: bytes, data: bytes) -> None:
        async with self._client.open(target, "ab") as file:
            await file.write(data)

    async def _replace(self, target: bytes, data: bytes, mode: int) -> None:
        temporary = _temporary(target)
        try:
            async with self._client.open(temporary, "xb") as file:
                await file.write(data)
                await file.fsync()
            await self._client.chmod(temporary, mode)
            await self._client.posix_rename(temporary, target)
        except BaseException:
            with suppress(asyncssh.SFTPError):
                await self._client.remove(temporary)
            raise


@asynccontextmanager
async def box_files(tunnel: Tunnel) -> AsyncIterator[BoxFiles]:
    """Open the files of a box while the context lasts. Raises Unavailable."""
    try:
        async with asyncio.timeout(OPEN_S):
            opening = tunnel.connection.start_sftp_client(path_encoding=None)
            client = await opened(opening, lambda late: late.exit())
    except FAULTS as error:
        raise Unavailable(f"cannot reach the files of the box: {_reason(error)}") from None
    try:
        yield BoxFiles(client)
    finally:
        client.exit()


@asynccontextmanager
async def _step(path: bytes) -> AsyncIterator[None]:
    """Translate errors of the file server into errors of the service."""
    what = _what(path)
    try:
        async with asyncio.timeout(STEP_S):
            yield
    except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
        raise NotFound(f"{what}: no such file or directory") from None
    except asyncssh.SFTPPermissionDenied:
        raise Forbidden(f"{what}: the box does not allow it") from None
    except (asyncssh.SFTPNotADirectory, asyncssh.SFTPFileAlreadyExists) as error:
        raise Conflict(f"{what}: {_reason(error)}") from None
    except (asyncssh.SFTPNoSpaceOnFilesystem, asyncssh.SFTPQuotaExceeded) as error:
        raise DiskFull(f"{what}: {_reason(error)}") from None
    except asyncssh.SFTPConnectionLost:
        raise Unavailable(f"{what}: the connection to the box was lost") from None
    except asyncssh.SFTPError as error:
        raise BadRequest(f"{what}: {_reason(error)}") from None
    except FAULTS as error:
        raise Unavailable(f"{what}: {_reason(error)}") from None


def _entry(name: bytes, attrs: asyncssh.SFTPAttrs) -> BoxEntry:
    return BoxEntry(
        name,
        attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY,
        attrs.size or 0,
        float(attrs.mtime or 0),
        _permissions(attrs),
    )


def _temporary(target: bytes) -> bytes:
    """Return the path of the new file until it is complete: beside the old one."""
    parent, name = posixpath.split(target)
    return posixpath.join(parent, b".%b.%b" % (name[:200], random_hex(6).encode()))


def _permissions(attrs: asyncssh.SFTPAttrs | None) -> int:
    if attrs is None or attrs.permissions is None:
        return NEW_FILE
    return stat.S_IMODE(attrs.permissions)


def _reason(error: Exception) -> str:
    if isinstance(error, asyncssh.SFTPError):
        return shown(error.reason)
    return "no answer in time" if isinstance(error, TimeoutError) else shown(str(error))


def _what(path: bytes) -> str:
    return shown(path.decode("utf-8", "replace"))


def _bytes(name: bytes | str) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
