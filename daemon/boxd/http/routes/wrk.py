"""Protocol adapter only. `/v1/wrk/{path}`: the drive over HTTP, streamed in both directions."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes, unquote_to_bytes

from boxd.errors import BadRange, BadRequest
from boxd.http.description.forms import BYTES
from boxd.http.description.operation import (
    JSON_TYPE,
    WS,
    Json,
    Operation,
    answer,
    errors,
    path,
    query,
    tags,
)
from boxd.http.description.operation import header as header_parameter
from boxd.http.requests.auth import authenticate
from boxd.http.requests.body import Body, ClientGone
from boxd.http.requests.conditions import (
    attachment,
    content_type,
    parse_date,
    parse_range,
    parse_tags,
    range_applies,
    refuse_duplicates,
)
from boxd.http.requests.errors import error_answer
from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.headers import has_body, header, joined, query_values, query_workspace
from boxd.names import filenames
from boxd.workspaces.drive import Condition, Directory, Drive, NoDrive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import Receive, Scope, Send

    from boxd.http.requests.exchange import Exchange
    from boxd.http.requests.headers import HeaderLines
    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.workspaces.drive import Entry, OpenFile

_LIMIT = re.compile(rb"[0-9]{1,5}")
UPLOAD_IDLE = 60.0
"""Seconds without a byte after which an upload fails. An upload keeps the drive in use."""
LISTING_BYTES = 64 * 1024
"""Approximate size of the parts in which a directory listing is sent."""
MAX_PAGE = 10_000
"""Maximum number of entries in one page of a listing."""
DATES = (b"if-modified-since", b"if-unmodified-since")
NO_CACHE = (b"cache-control", b"private, no-cache")
SANDBOX = (b"content-security-policy", b"sandbox")
TEMPLATE = "/v1/wrk/{path...}"
_NAME = r"([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+)"
FILE = f"^/*{_NAME}(/+{_NAME})*/*$"
"""Pattern of the paths in the document. An empty path names the root of the drive."""
_FILE = path(
    "path",
    "A path on the drive. The service percent-decodes its bytes once. A trailing slash means a"
    " directory. `..`, `.` and NUL are rejected.",
    "notes.txt",
    pattern=FILE,
)
_ETAG = {"ETag": {"description": "A strong entity tag.", "schema": {"type": "string"}}}
_CONDITIONS = (
    tags("If-Match", "Succeeds only if the file has one of these entity tags; otherwise 412."),
    tags(
        "If-None-Match",
        "Succeeds only if the file has none of these entity tags; `*`: only if no file exists.",
    ),
)


def _describe_read(name: str, summary: str, about: str) -> Operation:
    file: Json = {
        "description": "The bytes of the file, or the entries of the directory.",
        "headers": _ETAG,
        "content": {"*/*": {"schema": BYTES}, JSON_TYPE: {"schema": {}}},
    }
    return Operation(
        name,
        "Files",
        summary,
        about,
        {
            "200": file,
            "206": {**file, "description": "The requested range of the file."},
            "304": answer("The client has this version already."),
            **errors(404, 409, 412, 416, 507),
        },
        (
            _FILE,
            WS,
            query("download", "Tells the browser to save the file.", type="string"),
            query(
                "limit",
                "The maximum number of entries of a directory; without it, all entries.",
                type="integer",
                minimum=1,
                maximum=MAX_PAGE,
            ),
            {
                **query("cursor", "`next` of the previous page of a directory.", type="string"),
                "example": "notes.txt",
            },
            header_parameter(
                "Range",
                "`bytes=0-99`; a request for several ranges returns the whole file.",
                type="string",
            ),
            tags("If-None-Match", "Returns 304 if the file has one of these entity tags."),
        ),
    )


OPERATIONS = {
    "get": _describe_read(
        "readFile",
        "Read a file or list a directory",
        "Returns a file with its entity tag; the name determines the content type. Returns a"
        " directory as JSON (`Directory`).",
    ),
    "head": _describe_read("headFile", "Check a file", "Like GET, without the body."),
    "put": Operation(
        "writeFile",
        "Files",
        "Write a file or create a directory",
        "Writes are atomic: the file appears once its last byte is stored. Creates missing parent"
        " directories. A path with a trailing slash, and no body, creates a directory.",
        {
            "201": answer("The file or directory was created.", headers=_ETAG),
            "204": answer("An existing file was replaced.", headers=_ETAG),
            **errors(404, 409, 412, 413, 429, 507),
        },
        (_FILE, WS, *_CONDITIONS),
        {"content": {"application/octet-stream": {"schema": BYTES}}},
    ),
    "delete": Operation(
        "removeFile",
        "Files",
        "Remove a file, or a directory with everything in it",
        "The root of the drive itself is never removed.",
        {"204": answer("The file or directory is removed."), **errors(404, 409, 412, 507)},
        (_FILE, WS, *_CONDITIONS),
    ),
}


class WrkEndpoint:
    """Serves the drive. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal = await authenticate(scope, self._operations)
        path = _path(scope["raw_path"])
        ws = query_workspace(scope["query_string"])
        if scope["method"] == "PUT":
            await self._put(scope, receive, principal, path, ws)
        elif scope["method"] == "DELETE":
            await self._delete(scope, principal, path, ws)
        else:
            await self._get(scope, send, principal, path, ws)

    @asynccontextmanager
    async def _drive(
        self, principal: Principal, ws: str | None, *, create: bool = False
    ) -> AsyncIterator[Drive]:
        async with self._operations.drives.open(principal, ws, create=create) as filesystem:
            yield NoDrive() if filesystem is None else Drive(filesystem)

    async def _get(
        self, scope: Scope, send: Send, principal: Principal, path: bytes, ws: str | None
    ) -> None:
        lines = scope["headers"]
        refuse_duplicates(lines, b"range", b"if-range", *DATES)
        window = _window(scope["query_string"])
        async with self._drive(principal, ws) as drive, drive.at(path) as node:
            if isinstance(node, Directory):
                head = scope["method"] == "HEAD"
                page = _page(window, await drive.entries(node))
                await _send_listing(send, path, page, head)
            else:
                await _send_file(scope, send, node, path.rsplit(b"/", 1)[-1])

    async def _put(
        self, scope: Scope, receive: Receive, principal: Principal, path: bytes, ws: str | None
    ) -> None:
        lines = scope["headers"]
        if header(lines, b"content-range") is not None:
            raise BadRequest("a PUT replaces the whole file; Content-Range is not supported")
        refuse_duplicates(lines, *DATES)
        condition = _condition(lines)
        directory = path == b"" or path.endswith(b"/")
        if directory and has_body(lines):
            raise BadRequest(
                "a PUT to a path with a trailing slash creates a directory; send it without a body"
            )
        exchange = exchange_of(scope)
        async with self._drive(principal, ws, create=True) as drive:
            if directory:
                await _empty(exchange, 201 if await drive.make_directory(path) else 204)
                return
            try:
                written = await drive.put(path, Body(receive, idle=UPLOAD_IDLE).next, condition)
            except ClientGone:
                return
        tag = (b"etag", written.tag.encode())
        await _empty(exchange, 201 if written.created else 204, tag)

    async def _delete(
        self, scope: Scope, principal: Principal, path: bytes, ws: str | None
    ) -> None:
        refuse_duplicates(scope["headers"], *DATES)
        condition = _condition(scope["headers"])
        async with self._drive(principal, ws) as drive:
            await drive.delete(path, condition)
        await _empty(exchange_of(scope), 204)


def _path(raw_path: bytes) -> bytes:
    """Return the path on the drive: the part after `/v1/wrk/`, decoded once."""
    parts = raw_path.split(b"/", 3)
    return unquote_to_bytes(parts[3]) if len(parts) > 3 else b""


def _condition(lines: HeaderLines) -> Condition:
    match = parse_tags(joined(lines, b"if-match"))
    unless = parse_tags(joined(lines, b"if-none-match"))
    absent = unless is not None and unless.anything
    return Condition(
        match=match.strongly if match is not None else None,
        unless=unless.weakly if unless is not None and not absent else None,
        absent=absent,
        unchanged_since=parse_date(header(lines, b"if-unmodified-since")),
    )


async def _empty(exchange: Exchange, status: int, *lines: tuple[bytes, bytes]) -> None:
    length = [] if status == 204 else [(b"content-length", b"0")]
    await exchange.send(
        {"type": "http.response.start", "status": status, "headers": [*length, *lines]}
    )
    await exchange.send({"type": "http.response.body", "body": b""})


async def _send_file(scope: Scope, send: Send, file: OpenFile, name: bytes) -> None:
    lines, exchange = scope["headers"], exchange_of(scope)
    headers = _file_headers(file, name, query_values(scope["query_string"], b"download") != [])
    _read_condition(lines).check(file.attr, "the file")
    if _unchanged(lines, file):
        await _empty(exchange, 304, *headers)
        return
    start, stop, status = 0, file.size, 200
    try:
        if scope["method"] == "GET" and range_applies(header(lines, b"if-range"), file.tag):
            span = parse_range(header(lines, b"range"), file.size)
            if span is not None:
                (start, stop), status = span, 206
    except BadRange as error:
        size = (b"content-range", b"bytes */%d" % file.size)
        await exchange.answer(error_answer(416, str(error), [size]))
        return
    headers.append((b"content-length", b"%d" % (stop - start)))
    if status == 206:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, file.size)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] == "GET":
        async for piece in file.pieces(start, stop):
            if exchange.closed.is_set():
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _file_headers(file: OpenFile, name: bytes, download: bool) -> list[tuple[bytes, bytes]]:
    changed = datetime.fromtimestamp(file.mtime_ns // 1_000_000_000, UTC)
    lines = [
        (b"content-type", content_type(name).encode()),
        (b"accept-ranges", b"bytes"),
        (b"etag", file.tag.encode()),
        (b"last-modified", format_datetime(changed, usegmt=True).encode()),
        NO_CACHE,
        SANDBOX,
    ]
    if download:
        lines.append((b"content-disposition", attachment(name)))
    return lines


def _read_condition(lines: HeaderLines) -> Condition:
    """Return the precondition of a read; if it fails, the response is 412."""
    match = parse_tags(joined(lines, b"if-match"))
    return Condition(
        match=match.strongly if match is not None else None,
        unchanged_since=parse_date(header(lines, b"if-unmodified-since")),
    )


def _unchanged(lines: HeaderLines, file: OpenFile) -> bool:
    """Return whether the client has this version.

    Entity tags are exact, so they override a date.
    """
    tags = parse_tags(joined(lines, b"if-none-match"))
    if tags is not None:
        return tags.weakly(file.tag)
    since = parse_date(header(lines, b"if-modified-since"))
    return since is not None and file.mtime_ns // 1_000_000_000 <= since


@dataclass(frozen=True, slots=True)
class _Page:
    """Some entries of a directory. `cursor` of the next page; None: these are the last entries."""

    entries: list[Entry]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class _Window:
    """The page that a query asks for. `limit` None: all entries; `last` None: from the first."""

    limit: int | None
    last: bytes | None


def _window(query: bytes) -> _Window:
    """Return the page that a query asks for. Raises BadRequest."""
    limits, cursors = query_values(query, b"limit"), query_values(query, b"cursor")
    if len(limits) > 1 or len(cursors) > 1:
        raise BadRequest("give ?limit= and ?cursor= once")
    last = unquote_to_bytes(cursors[0]) if cursors else None
    if not limits:
        return _Window(None, last)
    if _LIMIT.fullmatch(limits[0]) is None or not 1 <= int(limits[0]) <= MAX_PAGE:
        raise BadRequest(f"?limit= must be a whole number from 1 to {MAX_PAGE}")
    return _Window(int(limits[0]), last)


def _page(window: _Window, entries: list[Entry]) -> _Page:
    """Return a page of a directory: the entries after a name.

    The cursor is opaque to clients. Entries that are created meanwhile appear if their names come
    later.
    """
    last, limit = window.last, window.limit
    if last is not None:
        entries = [entry for entry in entries if entry.name > last]
    page = entries[:limit]
    more = len(entries) > len(page)
    return _Page(page, quote_from_bytes(page[-1].name, safe="") if more else None)


async def _send_listing(send: Send, path: bytes, page: _Page, head: bool) -> None:
    lines = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    if not head:
        for part in _listing(path, page):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _listing(path: bytes, page: _Page) -> Iterator[bytes]:
    """Yield the JSON of a directory, in parts."""
    place = b"/" + b"/".join(part for part in path.split(b"/") if part)
    part = f'{{"dir": true, {json.dumps(filenames.members("path", place))[1:-1]}, "entries": ['
    for number, entry in enumerate(page.entries):
        part += (", " if number else "") + json.dumps(_members(entry))
        if len(part) > LISTING_BYTES:
            yield part.encode()
            part = ""
    yield f'{part}], "next": {json.dumps(page.cursor)}}}'.encode()


def _members(entry: Entry) -> Json:
    """Return the JSON form of an entry."""
    return {
        **filenames.members("name", entry.name),
        "is_dir": entry.is_dir,
        "size": entry.size,
        "mtime": datetime.fromtimestamp(entry.mtime_ns // 1_000_000_000, UTC).isoformat(),
        "etag": entry.tag,
    }
