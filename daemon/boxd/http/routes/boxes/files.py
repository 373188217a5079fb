"""Protocol adapter only. `/v1/boxes/{ref}/files/...`: the files of a box.

The file server of the agent reads and writes, as root of the box or as the account of its image.
Paths start at the root of the box. Files on the shared drive are faster at `/v1/wrk`.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRange, BadRequest
from boxd.http.description.boxes import REF
from boxd.http.description.forms import BYTES
from boxd.http.description.operation import (
    JSON_TYPE,
    WS,
    Operation,
    answer,
    errors,
    path,
    query,
    ref,
)
from boxd.http.description.operation import header as header_parameter
from boxd.http.requests.auth import authenticate
from boxd.http.requests.body import Body, ClientGone
from boxd.http.requests.conditions import attachment, content_type, parse_range
from boxd.http.requests.errors import error_answer
from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.headers import (
    has_body,
    header,
    path_text,
    query_values,
    query_workspace,
)
from boxd.http.routes.wrk import FILE, SANDBOX, UPLOAD_IDLE
from boxd.names import filenames
from boxd.tunnel.files import Listing, box_files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from boxd.http.description.operation import Json
    from boxd.operations import Operations
    from boxd.principal import Principal
    from boxd.tunnel.files import BoxEntry, BoxFiles, OpenBoxFile

TEMPLATE = "/v1/boxes/{ref}/files/{path...}"
METHODS = ("GET", "HEAD", "PUT", "DELETE")
_MODE = re.compile("[0-7]{3,4}")
_PATH = path(
    "path",
    "A path from the root of the box. The service percent-decodes its bytes once. A trailing slash"
    " means a directory.",
    "etc/hostname",
    pattern=FILE,
)
_LISTING = {"path": "/etc", "entries": []}


def _describe_read(name: str, summary: str, about: str) -> Operation:
    content: Json = {
        "description": "The bytes of the file, or the entries of the directory.",
        "content": {
            "*/*": {"schema": BYTES},
            JSON_TYPE: {"schema": ref("BoxDirectory"), "example": _LISTING},
        },
    }
    return Operation(
        name,
        "Files",
        summary,
        about,
        {
            "200": content,
            "206": {**content, "description": "The requested range of the file."},
            **errors(404, 409, 416, 429, 504, 507),
        },
        (
            REF,
            _PATH,
            WS,
            query("download", "Tells the browser to save the file.", type="string"),
            header_parameter(
                "Range",
                "`bytes=0-99`; a request for several ranges returns the whole file.",
                type="string",
            ),
        ),
    )


OPERATIONS = {
    "get": _describe_read(
        "readBoxFile",
        "Read a file of a box, or list a directory",
        "Returns a file, or a directory as JSON (`BoxDirectory`). Wakes a suspended box.",
    ),
    "head": _describe_read("headBoxFile", "Check a file of a box", "Like GET, without the body."),
    "put": Operation(
        "writeBoxFile",
        "Files",
        "Write a file of a box, or create a directory",
        "Writes are atomic: the file appears once its last byte is stored. Creates missing parent"
        " directories. A path with a trailing slash, and no body, creates a directory.",
        {
            "201": answer("The file or directory was created."),
            "204": answer("An existing file was replaced."),
            **errors(404, 409, 413, 429, 504, 507),
        },
        (
            REF,
            _PATH,
            WS,
            query(
                "mode",
                "Octal permissions. Default: those of the replaced file, or 0644.",
                type="string",
                pattern="^[0-7]{3,4}$",
            ),
        ),
        {"content": {"application/octet-stream": {"schema": BYTES}}},
    ),
    "delete": Operation(
        "removeBoxFile",
        "Files",
        "Remove a file of a box, or a directory with everything in it",
        "Removes a link itself, not its target.",
        {"204": answer("The file or directory is removed."), **errors(404, 409, 429, 504, 507)},
        (REF, _PATH, WS),
    ),
}


class BoxFilesEndpoint:
    """Serves the files of boxes. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. The box stays awake until the response has ended."""
        principal = await authenticate(scope, self._operations)
        place, exchange = _path(scope["raw_path"]), exchange_of(scope)
        if scope["method"] == "PUT":
            mode = _mode(query_values(scope["query_string"], b"mode"))
            if place.endswith(b"/") and has_body(scope["headers"]):
                raise BadRequest("a path with a trailing slash is a directory; send no body")
            async with self._files(scope, principal) as files:
                body = Body(receive, idle=UPLOAD_IDLE).next
                try:
                    created = await (
                        files.make_directory(place.rstrip(b"/") or b"/")
                        if place.endswith(b"/")
                        else files.put(place, body, mode)
                    )
                except ClientGone:
                    return
            await _answer_empty(scope, 201 if created else 204)
        elif scope["method"] == "DELETE":
            async with self._files(scope, principal) as files:
                await files.remove(place)
            await _answer_empty(scope, 204)
        else:
            async with (
                self._files(scope, principal) as files,
                files.reading(place) as found,
            ):
                sending = _send(scope, send, place, found)
                await exchange.while_connected(sending)

    @asynccontextmanager
    async def _files(self, scope: Scope, principal: Principal) -> AsyncIterator[BoxFiles]:
        target = path_text(scope["path"].split("/")[3])
        ws = query_workspace(scope["query_string"])
        access = BoxAccess(target, kind="reference", why="files", ws=ws)
        attach = self._operations.boxes.attach(principal, access)
        async with attach as attachment, box_files(attachment.tunnel) as files:
            yield files


def _path(raw_path: bytes) -> bytes:
    """Return the path in the box: the part after `files/`, decoded once. Raises BadRequest."""
    place = b"/" + unquote_to_bytes(raw_path.split(b"/", 5)[5])
    if b"\0" in place:
        raise BadRequest("the path contains a NUL character")
    return place


def _mode(values: list[bytes]) -> int | None:
    if not values:
        return None
    text = values[0].decode("ascii", "replace")
    if len(values) > 1 or _MODE.fullmatch(text) is None:
        raise BadRequest("?mode= must be octal permissions, for example 0644 or 0755")
    return int(text, 8)


async def _answer_empty(scope: Scope, status: int) -> None:
    exchange = exchange_of(scope)
    length = [] if status == 204 else [(b"content-length", b"0")]
    await exchange.send({"type": "http.response.start", "status": status, "headers": length})
    await exchange.send({"type": "http.response.body", "body": b""})


async def _send(scope: Scope, send: Send, place: bytes, found: OpenBoxFile | Listing) -> None:
    if isinstance(found, Listing):
        body = json.dumps(_listing(place, found)).encode()
        head = [(b"content-type", JSON_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})
        return
    start, stop, status = 0, found.size, 200
    try:
        span = parse_range(header(scope["headers"], b"range"), found.size)
    except BadRange as error:
        size = (b"content-range", b"bytes */%d" % found.size)
        await exchange_of(scope).answer(error_answer(416, str(error), [size]))
        return
    if span is not None and scope["method"] == "GET":
        (start, stop), status = span, 206
    headers = _headers(scope, place, found)
    headers.append((b"content-length", b"%d" % (stop - start)))
    if status == 206:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, stop - 1, found.size)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] == "GET":
        async for piece in found.pieces(start, stop):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _headers(scope: Scope, place: bytes, found: OpenBoxFile) -> list[tuple[bytes, bytes]]:
    name = place.rsplit(b"/", 1)[-1]
    changed = datetime.fromtimestamp(found.mtime, UTC)
    headers = [
        (b"content-type", content_type(name).encode()),
        (b"accept-ranges", b"bytes"),
        (b"last-modified", format_datetime(changed, usegmt=True).encode()),
        SANDBOX,
    ]
    if query_values(scope["query_string"], b"download"):
        headers.append((b"content-disposition", attachment(name)))
    return headers


def _listing(place: bytes, listing: Listing) -> Json:
    where = b"/" + b"/".join(part for part in place.split(b"/") if part)
    return {**filenames.members("path", where), "entries": [_entry(e) for e in listing.entries]}


def _entry(entry: BoxEntry) -> Json:
    return {
        **filenames.members("name", entry.name),
        "is_dir": entry.is_dir,
        "size": entry.size,
        "mtime": datetime.fromtimestamp(entry.mtime, UTC).isoformat(),
        "mode": f"{entry.mode:04o}",
    }
