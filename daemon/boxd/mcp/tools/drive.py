"""`wrk_*`: the drive of a workspace."""

from __future__ import annotations

import base64
import binascii
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from boxd.errors import BadRequest, Conflict, NotFound, PreconditionFailed, TooLarge
from boxd.mcp.tools.boxes import WS
from boxd.mcp.tools.files import (
    CODED,
    DATA,
    ENCODED,
    LIMIT,
    OFFSET,
    READ_RESULT,
    moment,
    path_bytes,
    portion,
)
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENTRIES, INTEGER, STRING, decode
from boxd.mcp.tools.tool import Call, Tool
from boxd.names import filenames
from boxd.workspaces.drive import Condition, Directory, Drive, NoDrive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


PAGE = 1000
"""Entries of a directory that are told at once."""
MAX_ADDED_TO = 64 * 1024 * 1024
"""Bytes of a file that can be added to: all of it is written anew, so that it changes in one
step."""
TRIES = 20
SECOND = 1_000_000_000

PATH = Param("path", "string", "on the drive, which boxes have at /wrk", required=True)


@asynccontextmanager
async def _drive(call: Call, *, create: bool = False) -> AsyncIterator[Drive]:
    opened = call.operations.drives.open(call.principal, call.args["ws"], create=create)
    async with opened as filesystem:
        yield NoDrive() if filesystem is None else Drive(filesystem)


async def _list(call: Call) -> dict[str, Any]:
    path, after = path_bytes(call), _after(call.args["cursor"])
    async with _drive(call) as drive, drive.at(path) as found:
        if not isinstance(found, Directory):
            raise Conflict(f"{call.args['path']} is a file; read it with wrk_read")
        entries = await drive.entries(found)
    rest = [entry for entry in entries if entry.name > after]
    shown = [
        {**filenames.members("name", one.name), "is_dir": one.is_dir, "size": one.size}
        for one in rest[:PAGE]
    ]
    answer: dict[str, Any] = {"path": call.args["path"], "entries": shown}
    if len(rest) > PAGE:
        answer["next"] = base64.urlsafe_b64encode(rest[PAGE - 1].name).decode("ascii")
    return answer


def _after(cursor: str | None) -> bytes:
    try:
        return base64.urlsafe_b64decode((cursor or "").encode("ascii"))
    except (UnicodeEncodeError, binascii.Error):
        raise BadRequest("cursor is not one that wrk_list gave") from None


async def _read(call: Call) -> dict[str, Any]:
    offset, limit = call.args["offset"], call.args["limit"]
    room = call.operations.output.room(call.principal.owner)
    async with _drive(call) as drive, drive.at(path_bytes(call)) as found:
        if isinstance(found, Directory):
            raise Conflict(f"{call.args['path']} is a directory; list it with wrk_list")
        start = min(offset, found.size)
        wanted = min(limit, found.size - start)
        await call.reserve(wanted)
        with room:
            stop = start + room.part().grow(wanted)
            data = b"".join([piece async for piece in found.pieces(start, stop)])
        return {
            "path": call.args["path"],
            "size": found.size,
            "mtime": moment(found.mtime_ns / SECOND),
            "etag": found.tag,
            **portion(data, eof=stop >= found.size),
        }


async def _write(call: Call) -> dict[str, Any]:
    path = path_bytes(call)
    data = decode(call.args["data"], call.args["encoding"])
    wanted = call.args["if_match"]
    async with _drive(call, create=True) as drive:
        if call.args["append"]:
            return await _append(call, drive, path, data, wanted)
        condition = _matching(wanted) if wanted is not None else Condition()
        written = await drive.put(path, _body(data), condition)
    return _written(call, len(data), written.tag, written.created)


async def _append(
    call: Call, drive: Drive, path: bytes, data: bytes, wanted: str | None
) -> dict[str, Any]:
    """The file with `data` at its end, whoever writes to it beside us."""
    for _ in range(TRIES):
        try:
            return await _added(call, drive, path, data, wanted)
        except PreconditionFailed:
            if wanted is not None:
                raise
    raise Conflict(f"{call.args['path']} changes all the time; try again")


async def _added(
    call: Call, drive: Drive, path: bytes, data: bytes, wanted: str | None
) -> dict[str, Any]:
    """One try. PreconditionFailed when somebody was faster."""
    async with AsyncExitStack() as stack:
        try:
            found = await stack.enter_async_context(drive.at(path))
        except NotFound:
            if wanted is not None:
                raise PreconditionFailed(f"{call.args['path']} is not there") from None
            written = await drive.put(path, _body(data), Condition(absent=True))
            return _written(call, len(data), written.tag, created=True)
        if isinstance(found, Directory):
            raise Conflict(f"{call.args['path']} is a directory")
        if found.size > MAX_ADDED_TO:
            raise TooLarge(
                f"{call.args['path']} has {found.size} bytes; at most {MAX_ADDED_TO} can "
                "be added to here: use box_exec"
            )
        before = await stack.enter_async_context(aclosing(found.pieces(0, found.size)))
        condition = _matching(found.tag if wanted is None else wanted)
        written = await drive.put(path, _body(data, before), condition)
        return _written(call, found.size + len(data), written.tag, created=False)


def _matching(tag: str) -> Condition:
    return Condition(match=lambda present: present == tag)


def _body(
    data: bytes, before: AsyncIterator[bytes] | None = None
) -> Callable[[], Awaitable[bytes | None]]:
    """What `before` brings, piece by piece, and then `data`."""
    left = [data] if data else []

    async def next_piece() -> bytes | None:
        if before is not None and (piece := await anext(before, None)) is not None:
            return piece
        return left.pop() if left else None

    return next_piece


def _written(call: Call, size: int, tag: str, created: bool) -> dict[str, Any]:
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
        f"Lists a directory of the drive, {PAGE} entries at a time: `next` is the cursor of what "
        "follows.",
        _list,
        (
            Param("path", "string", "the directory", default="/"),
            WS,
            Param("cursor", "string", "where to go on"),
            ENCODED,
        ),
        {"path": STRING, "entries": ENTRIES, "next": STRING},
        frozenset({"next"}),
        reads=True,
    ),
    Tool(
        "wrk_read",
        "Read a file of the drive",
        "Reads a part of a file on the drive. Bytes that are no UTF-8 come in base64.",
        _read,
        (PATH, OFFSET, LIMIT, WS, ENCODED),
        {name: READ_RESULT[name] for name in READ_RESULT if name != "entries"} | {"etag": STRING},
        reads=True,
    ),
    Tool(
        "wrk_write",
        "Write a file of the drive",
        "Writes a file on the drive in one step, with the directories above it, or adds to it.",
        _write,
        (
            PATH,
            DATA,
            CODED,
            Param("append", "boolean", "add to what is there", default=False),
            Param("if_match", "string", "only if the file has this etag"),
            WS,
            ENCODED,
        ),
        {"path": STRING, "size": INTEGER, "etag": STRING, "created": BOOLEAN},
        destroys=True,
    ),
    Tool(
        "wrk_mkdir",
        "Create a directory on the drive",
        "Makes a directory on the drive, with those above it.",
        _mkdir,
        (PATH, WS, ENCODED),
        {"path": STRING, "created": BOOLEAN},
        repeatable=True,
    ),
    Tool(
        "wrk_delete",
        "Delete from the drive",
        "Removes a file, or a directory with all that is in it, from the drive.",
        _delete,
        (PATH, WS, ENCODED),
        {"path": STRING},
        destroys=True,
    ),
)
