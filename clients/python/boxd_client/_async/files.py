"""Files of a box and of a drive."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from boxd_client.errors import AnswerTooLarge, ConnectionLost, NotFound, ProtocolError
from boxd_client.models import FileStat, Listing
from boxd_client.protocol import JSON, Request, Retry, file_path, media_type, model_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from boxd_client._async.basis import Content, Stream
    from boxd_client._async.transport import AsyncBody, AsyncTransport
    from boxd_client.models import Entry

MAX_FILE = 256 * 1024 * 1024
"""Default limit on a file that is read into memory, in bytes."""
PAGE = 1000
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class AsyncFiles(ABC):
    """Files below one root: those of a box, or those of a drive. Paths begin at the root."""

    def __init__(self, transport: AsyncTransport, root: str, workspace: str | None = None) -> None:
        self._transport = transport
        self._root = root
        self._workspace = workspace

    async def read(
        self, path: str, *, start: int = 0, end: int | None = None, limit: int = MAX_FILE
    ) -> bytes:
        """Return the bytes of a file from `start` up to, not including, `end`.

        Raises AnswerTooLarge if they exceed `limit` bytes; `read_stream` has no limit.
        """
        buffer = bytearray()
        async with self.read_stream(path, start=start, end=end) as chunks:
            async for chunk in chunks:
                buffer += chunk
                if len(buffer) > limit:
                    raise AnswerTooLarge(f"{path} exceeds {limit} bytes; use read_stream")
        return bytes(buffer)

    async def read_text(self, path: str) -> str:
        """Return a file that is UTF-8 text. Raises UnicodeDecodeError if it is not."""
        return (await self.read(path)).decode("utf-8")

    @asynccontextmanager
    async def read_stream(
        self, path: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[Stream[bytes]]:
        """Yield an iterator of the bytes of a file. It raises ConnectionLost if the file is cut.

        Raises NotFound if the path is a directory.
        """
        headers = {}
        ranged = start > 0 or end is not None
        if ranged:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        request = Request("GET", self._path(path), self._params(), headers)
        async with self._transport.open(request, (200, 206)) as body:
            if media_type(body.headers) == JSON and "accept-ranges" not in body.headers:
                raise NotFound(f"{path} is a directory, not a file", 404)
            size = _checked_size(body, start, end) if ranged else _length(body)
            chunks = _exactly(body, size)
            try:
                yield chunks
            finally:
                await chunks.aclose()

    async def write(self, path: str, content: Content, *, mode: int | None = None) -> None:
        """Write a file and create missing parents. `mode`: permissions, only in a box.

        Content that can be read only once is not sent again after a failure.
        """
        mode_text = None if mode is None else f"{mode:04o}"
        if isinstance(content, str):
            content = content.encode()
        retry = Retry.SAFE if isinstance(content, bytes) else Retry.NEVER
        headers = {"Content-Type": "application/octet-stream"}
        params = {**self._params(), "mode": mode_text}
        request = Request("PUT", self._path(path), params, headers, content, retry)
        await self._transport.send(request)

    async def list(self, path: str = "") -> list[Entry]:
        """Return all entries of a directory, sorted by name."""
        entries: list[Entry] = []
        cursor: str | None = None
        cursors: set[str] = set()
        while True:
            page = await self._page(path, cursor)
            entries += page.entries
            cursor = page.next
            if cursor is None:
                return entries
            if cursor in cursors:
                raise ProtocolError(f"the pages of {path!r} do not end")
            cursors.add(cursor)

    async def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it."""
        request = Request("DELETE", self._path(path), self._params(), retry=Retry.SAFE)
        await self._transport.send(request)

    async def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        try:
            async with self._transport.open(Request("GET", self._path(path), self._params())):
                return True
        except NotFound:
            return False

    def _path(self, path: str) -> str:
        return f"{self._root}/{file_path(path)}"

    def _params(self) -> dict[str, object]:
        return {"ws": self._workspace}

    @abstractmethod
    async def _page(self, path: str, cursor: str | None) -> Listing:
        """Return one page of a directory; `cursor` None: the first one."""

    async def _directory(self, request: Request) -> Listing:
        answer = await self._transport.send(request)
        if media_type(answer.headers) != JSON:
            raise NotFound(f"{request.path} is a file, not a directory", 404)
        return model_of(answer, Listing)


class AsyncBoxFiles(AsyncFiles):
    """Files of a box. `/etc/hosts` and `etc/hosts` are the same file."""

    async def _page(self, path: str, cursor: str | None) -> Listing:
        params = {**self._params(), "list": True}
        if cursor is not None:
            params["cursor"] = cursor
        request = Request("GET", self._path(path), params, retry=Retry.SAFE)
        return await self._directory(request)


class AsyncDrive(AsyncFiles):
    """Files of a drive, which boxes see below `/wrk`. `notes.txt` is `/wrk/notes.txt`."""

    async def stat(self, path: str) -> FileStat:
        """Return the size and the entity tag of a file."""
        request = Request("HEAD", self._path(path), self._params(), retry=Retry.SAFE)
        answer = await self._transport.send(request)
        length = answer.headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            raise ProtocolError(f"the answer has no size of {path!r}")
        return FileStat(int(length), answer.headers.get("etag"))

    async def make_directory(self, path: str) -> None:
        """Create a directory and missing parents."""
        place = self._path(path).rstrip("/") + "/"
        await self._transport.send(Request("PUT", place, self._params(), retry=Retry.SAFE))

    async def move(self, source: str, target: str, *, replace: bool = False) -> None:
        """Move or rename a file or directory. `replace`: also onto a file or empty directory."""
        params = {**self._params(), "from": source, "to": target, "replace": replace}
        await self._transport.send(Request("POST", "/v1/drive/move", params))

    async def copy(self, source: str, target: str) -> None:
        """Copy a file or directory without copying its bytes. The target must not exist."""
        params = {**self._params(), "from": source, "to": target}
        await self._transport.send(Request("POST", "/v1/drive/clone", params))

    async def _page(self, path: str, cursor: str | None) -> Listing:
        params = {**self._params(), "limit": PAGE, "cursor": cursor, "long": True}
        place = self._path(path).rstrip("/") + "/"
        return await self._directory(Request("GET", place, params, retry=Retry.SAFE))


async def _exactly(body: AsyncBody, size: int | None) -> Stream[bytes]:
    """Yield the body. Raises ConnectionLost or ProtocolError if it has another size."""
    count = 0
    async for chunk in body.chunks():
        count += len(chunk)
        if size is not None and count > size:
            raise ProtocolError(f"the answer has more than the announced {size} bytes")
        yield chunk
    if size is not None and count < size:
        raise ConnectionLost(f"the answer ended after {count} of {size} bytes")


def _length(body: AsyncBody) -> int | None:
    if body.status != 200:
        raise ProtocolError("the answer is a part of the file, but the request is for all of it")
    text = body.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ProtocolError("the answer has a length that is no number")
    return int(text)


def _checked_size(body: AsyncBody, start: int, end: int | None) -> int:
    """Return the size of a requested range. Raises ProtocolError if it is another range."""
    match = _RANGE.fullmatch(body.headers.get("content-range", ""))
    if body.status != 206 or match is None:
        raise ProtocolError("the answer is not the requested part of the file")
    first, last = int(match[1]), int(match[2])
    if first != start or last < first or (end is not None and last >= end):
        raise ProtocolError(f"the answer is bytes {first} to {last} instead of the requested ones")
    if match[3] != "*" and last != min(int(match[3]), end or int(match[3])) - 1:
        raise ProtocolError(f"the answer ends at byte {last}, before the requested part")
    return last - first + 1
