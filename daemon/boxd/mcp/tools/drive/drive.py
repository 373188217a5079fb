"""`wrk_*`: files on the drive of a workspace."""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from boxd.errors import BadRequest, Conflict, NotFound, PreconditionFailed, TooLarge
from boxd.mcp.tools.boxes.boxes import WS
from boxd.mcp.tools.boxes.files import (
    DATA,
    ENCODED_PATH,
    ENCODING_OF_DATA,
    LIMIT,
    OFFSET,
    READ_RESULT,
    encode_part,
    format_time,
    path_bytes,
)
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENTRIES, INTEGER, STRING, decode
from boxd.mcp.tools.tool import Call, Tool
from boxd.names import filenames
from boxd.workspaces.drive import Condition, Directory, Drive, NoDrive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


PAGE = 1000
"""Entries of a directory in one result of `wrk_list`."""
MAX_APPENDABLE = 64 * 1024 * 1024
"""Maximum size of a file that `append` accepts, in bytes. `append` rewrites the file atomically."""
MAX_ATTEMPTS = 20
NS_PER_S = 1_000_000_000

PATH = Param("path", "string", "the path on the drive; boxes see the drive at /wrk", required=True)


@asynccontextmanager
async def _drive(call: Call, *, create: bool = False) -> AsyncIterator[Drive]:
    drive = call.operations.drives.open(call.principal, call.args["ws"], create=create)
    async with drive as filesystem:
        yield NoDrive() if filesystem is None else Drive(filesystem)


async def _list(call: Call) -> dict[str, Any]:
    path, last_name = path_bytes(call), _decode_cursor(call.args["cursor"])
    async with _drive(call) as drive, drive.at(path) as item:
        if not isinstance(item, Directory):
            raise Conflict(f"{call.args['path']} is a file; read it with wrk_read")
        entries = await drive.entries(item)
    remaining = [entry for entry in entries if entry.name > last_name]
    page = [
        {
            **filenames.members("name", entry.name),
            "is_dir": entry.is_dir,
            "size": entry.size,
            "mtime": format_time(entry.mtime_ns / NS_PER_S),
        }
        for entry in remaining[:PAGE]
    ]
    result: dict[str, Any] = {"path": call.args["path"], "entries": page}
    if len(remaining) > PAGE:
        result["next"] = base64.urlsafe_b64encode(remaining[PAGE - 1].name).decode("ascii")
    return result


def _decode_cursor(cursor: str | None) -> bytes:
    """Return the last name of the previous page."""
    try:
        return base64.urlsafe_b64decode((cursor or "").encode("ascii"))
    except (UnicodeEncodeError, binascii.Error):
        raise BadRequest("cursor is not valid; pass `next` of an earlier wrk_list result") from None


async def _read(call: Call) -> dict[str, Any]:
    offset, limit = call.args["offset"], call.args["limit"]
    room = call.operations.output.room(call.principal.owner)
    async with _drive(call) as drive, drive.at(path_bytes(call)) as item:
        if isinstance(item, Directory):
            raise Conflict(f"{call.args['path']} is a directory; list it with wrk_list")
        start = min(offset, item.size)
        length = min(limit, item.size - start)
        await call.reserve(length)
        with room:
            stop = start + room.part().grow(length)
            data = b"".join([piece async for piece in item.pieces(start, stop)])
        return {
            "path": call.args["path"],
            "size": item.size,
            "mtime": format_time(item.mtime_ns / NS_PER_S),
            "etag": item.tag,
            **encode_part(data, eof=stop >= item.size),
        }


async def _write(call: Call) -> dict[str, Any]:
    path = path_bytes(call)
    data = decode(call.args["data"], call.args["encoding"])
    etag = call.args["if_match"]
    async with _drive(call, create=True) as drive:
        if call.args["append"]:
            return await _append(call, drive, path, data, etag)
        condition = _if_match(etag) if etag is not None else Condition()
        written = await drive.put(path, _body(data), condition)
    return _write_result(call, len(data), written.tag, written.created)


async def _append(
    call: Call, drive: Drive, path: bytes, data: bytes, etag: str | None
) -> dict[str, Any]:
    """Append data to a file. If another client writes to the file meanwhile, try again."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return await _append_once(call, drive, path, data, etag)
        except PreconditionFailed:
            if etag is not None:
                raise
    raise Conflict(f"other clients keep writing to {call.args['path']}; try again later")


async def _append_once(
    call: Call, drive: Drive, path: bytes, data: bytes, etag: str | None
) -> dict[str, Any]:
    """Try to append once. Raises PreconditionFailed if the file changed meanwhile."""
    async with AsyncExitStack() as stack:
        try:
            item = await stack.enter_async_context(drive.at(path))
        except NotFound:
            if etag is not None:
                raise PreconditionFailed(f"{call.args['path']} does not exist") from None
            written = await drive.put(path, _body(data), Condition(absent=True))
            return _write_result(call, len(data), written.tag, created=True)
        if isinstance(item, Directory):
            raise Conflict(f"{call.args['path']} is a directory; give the path of a file")
        if item.size > MAX_APPENDABLE:
            raise TooLarge(
                f"{call.args['path']} has {item.size} bytes; append accepts files of at most "
                f"{MAX_APPENDABLE} bytes: append in a box, with box_exec"
            )
        content = await stack.enter_async_context(aclosing(item.pieces(0, item.size)))
        condition = _if_match(item.tag if etag is None else etag)
        written = await drive.put(path, _body(data, content), condition)
        return _write_result(call, item.size + len(data), written.tag, created=False)


def _if_match(etag: str) -> Condition:
    return Condition(match=lambda current: current == etag)


def _body(
    data: bytes, content: AsyncIterator[bytes] | None = None
) -> Callable[[], Awaitable[bytes | None]]:
    """Return a function that returns the pieces of `content`, then `data`, then None."""
    remaining = [data] if data else []

    async def next_piece() -> bytes | None:
        if content is not None and (piece := await anext(content, None)) is not None:
            return piece
        return remaining.pop() if remaining else None

    return next_piece


def _write_result(call: Call, size: int, tag: str, created: bool) -> dict[str, Any]:
    return {"path": call.args["path"], "size": size, "etag": tag, "created": created}


async def _mkdir(call: Call) -> dict[str, Any]:
    async with _drive(call, create=True) as drive:
        created = await drive.make_directory(path_bytes(call))
    return {"path": call.args["path"], "created": created}


async def _delete(call: Call) -> dict[str, Any]:
    async with _drive(call) as drive:
        await drive.delete(path_bytes(call), Condition())
    return {"path": call.args["path"]}


TOOLS = (
    Tool(
        "wrk_list",
        "List a directory of the drive",
        f"List a directory of the drive, {PAGE} entries at a time. Pass `next` of the result as "
        "`cursor` to get the following entries.",
        _list,
        (
            Param("path", "string", "the directory", default="/"),
            WS,
            Param("cursor", "string", "`next` of the previous result"),
            ENCODED_PATH,
        ),
        {"path": STRING, "entries": ENTRIES, "next": STRING},
        frozenset({"next"}),
        read_only=True,
    ),
    Tool(
        "wrk_read",
        "Read a file of the drive",
        "Read a part of a file on the drive. Data that is not UTF-8 is returned in base64.",
        _read,
        (PATH, OFFSET, LIMIT, WS, ENCODED_PATH),
        {name: READ_RESULT[name] for name in READ_RESULT if name != "entries"} | {"etag": STRING},
        read_only=True,
    ),
    Tool(
        "wrk_write",
        "Write a file of the drive",
        "Write a file on the drive atomically, and create its parent directories, or append to it.",
        _write,
        (
            PATH,
            DATA,
            ENCODING_OF_DATA,
            Param("append", "boolean", "append data to the existing file", default=False),
            Param("if_match", "string", "write only if the file has this etag"),
            WS,
            ENCODED_PATH,
        ),
        {"path": STRING, "size": INTEGER, "etag": STRING, "created": BOOLEAN},
        destructive=True,
    ),
    Tool(
        "wrk_mkdir",
        "Create a directory on the drive",
        "Create a directory on the drive, and its parent directories.",
        _mkdir,
        (PATH, WS, ENCODED_PATH),
        {"path": STRING, "created": BOOLEAN},
        idempotent=True,
    ),
    Tool(
        "wrk_delete",
        "Delete from the drive",
        "Delete a file, or a directory with everything in it, from the drive.",
        _delete,
        (PATH, WS, ENCODED_PATH),
        {"path": STRING},
        destructive=True,
    ),
)
