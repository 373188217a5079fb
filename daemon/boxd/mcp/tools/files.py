"""`box_read` and `box_write`: files of a box, by its own file server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from boxd.boxes.commands.output import whole_characters
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest
from boxd.mcp.tools.boxes import REF
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENCODING, ENTRIES, INTEGER, STRING, decode, encode
from boxd.mcp.tools.tool import Call, Tool
from boxd.names import filenames
from boxd.tunnel.files import Listing, box_files

READ = 256 * 1024
MAX_READ = 4 * 1024 * 1024

OFFSET = Param("offset", "integer", "first byte", default=0, minimum=0, maximum=2**62)
LIMIT = Param("limit", "integer", "bytes at most", default=READ, minimum=1, maximum=MAX_READ)
ENCODED = Param(
    "encoded",
    "boolean",
    "path is percent-encoded; for names that are not UTF-8, which a list shows as encoded_name",
    default=False,
)
DATA = Param("data", "string", "the content", required=True)
CODED = Param(
    "encoding", "string", "how data is written", default="utf-8", choices=("utf-8", "base64")
)


async def _read(call: Call) -> dict[str, Any]:
    access = BoxAccess(call.args["box"], kind="reference", why="mcp")
    attach = call.operations.boxes.attach(call.principal, access, call.progress())
    path, offset, limit = call.args["path"], call.args["offset"], call.args["limit"]
    with call.operations.output.room(call.principal.owner) as room:
        async with attach as held, box_files(held.tunnel) as files:
            await call.reserve(limit)
            found = await files.read(path_bytes(call), offset, room.part().grow(limit))
        if isinstance(found, Listing):
            return {"path": path, "entries": [_entry(*entry) for entry in found.entries]}
        return {"path": path, **portion(found.data, eof=found.eof), "size": found.size} | {
            "mtime": moment(found.mtime)
        }


def portion(data: bytes, *, eof: bool) -> dict[str, Any]:
    """A piece of a file; one that goes on ends with a whole character, if it holds one: a client
    that reads on from its end gets on."""
    text, encoding = encode(data if eof else whole_characters(data) or data)
    return {"data": text, "encoding": encoding, "eof": eof}


def moment(seconds: float) -> str:
    """A time of a file, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _entry(name: bytes, is_dir: bool, size: int) -> dict[str, Any]:
    return {**filenames.members("name", name), "is_dir": is_dir, "size": size}


async def _write(call: Call) -> dict[str, Any]:
    data = decode(call.args["data"], call.args["encoding"])
    mode = None if call.args["mode"] is None else _mode(call.args["mode"])
    path = call.args["path"]
    access = BoxAccess(call.args["box"], kind="reference", why="mcp")
    attach = call.operations.boxes.attach(call.principal, access, call.progress())
    async with attach as held, box_files(held.tunnel) as files:
        append = call.args["append"]
        size, created = await files.write(path_bytes(call), data, mode, append=append)
    return {"path": path, "size": size, "created": created}


def path_bytes(call: Call) -> bytes:
    """The argument `path` as bytes."""
    path: str = call.args["path"]
    return unquote_to_bytes(path) if call.args["encoded"] else path.encode("utf-8")


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise BadRequest("mode is octal, for example 0644 or 0755")
    return mode


_PATH = Param("path", "string", "in the box; relative ones begin at its home", True, minimum=1)
READ_RESULT = {
    "path": STRING,
    "size": INTEGER,
    "mtime": STRING,
    "data": STRING,
    "encoding": ENCODING,
    "eof": BOOLEAN,
    "entries": ENTRIES,
}
READ_OPTIONAL = frozenset(READ_RESULT) - {"path"}

TOOLS = (
    Tool(
        "box_read",
        "Read a file in a box",
        "Reads a part of a file in a box, or lists a directory. Bytes that are no UTF-8 come in "
        "base64.",
        _read,
        (REF, _PATH, OFFSET, LIMIT, ENCODED),
        READ_RESULT,
        READ_OPTIONAL,
        reads=True,
    ),
    Tool(
        "box_write",
        "Write a file in a box",
        "Writes a file in a box, with the directories above it. The file is replaced in one step, "
        "or added to.",
        _write,
        (
            REF,
            _PATH,
            DATA,
            CODED,
            Param(
                "mode",
                "string",
                "octal permissions; left out: those that the file has, or 0644",
                maximum=5,
            ),
            Param("append", "boolean", "add to what is there", default=False),
            ENCODED,
        ),
        {"path": STRING, "size": INTEGER, "created": BOOLEAN},
        destroys=True,
    ),
)
