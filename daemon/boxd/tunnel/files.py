"""Reads and writes files of a box, through the file server of its agent."""

from __future__ import annotations

import asyncio
import posixpath
import stat
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncssh

from boxd.errors import BadRequest, Conflict, DiskFull, Forbidden, NotFound, Unavailable
from boxd.names.words import shown
from boxd.secret import random_hex
from boxd.tunnel.channel import FAULTS, OPEN_S
from boxd.tunnel.opening import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd.tunnel.channel import Tunnel

STEP_S = 60.0
"""Seconds within which the box must complete an operation."""
MAX_ENTRIES = 10_000
"""Maximum number of entries of a directory that can be listed."""
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
class Listing:
    """A directory: (name, is a directory, size in bytes) of each entry, sorted by name."""

    entries: list[tuple[bytes, bool, int]]


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
        entries: list[tuple[bytes, bool, int]] = []
        async for entry in self._client.scandir(path):
            if entry.filename in (b".", b".."):
                continue
            if len(entries) == MAX_ENTRIES:
                raise BadRequest(f"{_what(path)} has more than {MAX_ENTRIES} entries; use box_exec")
            directory = entry.attrs.type == asyncssh.FILEXFER_TYPE_DIRECTORY
            entries.append((_bytes(entry.filename), directory, entry.attrs.size or 0))
        return Listing(sorted(entries))

    async def write(
        self, path: bytes, data: bytes, mode: int | None, *, append: bool
    ) -> tuple[int, bool]:
        """Replace a file atomically, or append to it. Return its new size and whether it is new.

        `mode` None keeps the permissions. Follows links, and creates parent directories. Raises
        NotFound, Forbidden, Conflict, DiskFull.
        """
        async with _step(path):
            target = _bytes(await self._client.realpath(path))
            before = await self._present(target)
            if before is not None and before.type != asyncssh.FILEXFER_TYPE_REGULAR:
                raise Conflict(f"{_what(path)} exists and is not a file")
            if before is None:
                parent = posixpath.dirname(target)
                attrs = asyncssh.SFTPAttrs(permissions=NEW_DIRECTORY)
                await self._client.makedirs(parent, attrs, exist_ok=True)
            if append:
                await self._add(target, data)
            else:
                mode = _permissions(before) if mode is None else mode
                await self._replace(target, data, mode)
            return (await self._client.stat(target)).size or 0, before is None

    async def _present(self, target: bytes) -> asyncssh.SFTPAttrs | None:
        with suppress(asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
            return await self._client.stat(target)
        return None

    async def _add(self, target: bytes, data: bytes) -> None:
        async with self._client.open(target, "ab") as file:
            await file.write(data)

    async def _replace(self, target: bytes, data: bytes, mode: int) -> None:
        parent, name = posixpath.split(target)
        temporary = posixpath.join(parent, b".%b.%b" % (name[:200], random_hex(6).encode()))
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
