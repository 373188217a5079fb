"""`box_read` and `box_write`: files of a box, through the file server in the box."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from boxd.boxes.commands.output import whole_characters
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest
from boxd.mcp.tools.boxes.boxes import REF
from boxd.mcp.tools.params import Param
from boxd.mcp.tools.shapes import BOOLEAN, ENCODING, ENTRIES, INTEGER, STRING, decode, encode
from boxd.mcp.tools.tool import Call, Tool
from boxd.names import filenames
from boxd.tunnel.files import BoxEntry, Listing, box_files

DEFAULT_READ = 256 * 1024
MAX_READ = 4 * 1024 * 1024

OFFSET = Param("offset", "integer", "the first byte to read", default=0, minimum=0, maximum=2**62)
LIMIT = Param(
    "limit",
    "integer",
    "the maximum number of bytes to read",
    default=DEFAULT_READ,
    minimum=1,
    maximum=MAX_READ,
)
ENCODED_PATH = Param(
    "encoded",
    "boolean",
    "path is percent-encoded, as in encoded_name of a listing; for names that are not UTF-8",
    default=False,
)
DATA = Param("data", "string", "the content to write", required=True)
ENCODING_OF_DATA = Param(
    "encoding", "string", "the encoding of data", default="utf-8", choices=("utf-8", "base64")
)


async def _read(call: Call) -> dict[str, Any]:
    access = BoxAccess(call.args["box"], kind="reference", why="mcp")
    attach = call.operations.boxes.attach(call.principal, access, call.progress())
    path, offset, limit = call.args["path"], call.args["offset"], call.args["limit"]
    with call.operations.output.room(call.principal.owner) as room:
        async with attach as attachment, box_files(attachment.tunnel) as files:
            await call.reserve(limit)
            content = await files.read(path_bytes(call), offset, room.part().grow(limit))
        if isinstance(content, Listing):
            return {"path": path, "entries": [_entry(entry) for entry in content.entries]}
        return {
            "path": path,
            **encode_part(content.data, eof=content.eof),
            "size": content.size,
            "mtime": format_time(content.mtime),
        }


def encode_part(data: bytes, *, eof: bool) -> dict[str, Any]:
    """Encode a part of a file. `eof`: the file ends here.

    Otherwise the part ends with a whole character, if it contains one. The client continues at the
    end of the part.
    """
    text, encoding = encode(data if eof else whole_characters(data) or data)
    return {"data": text, "encoding": encoding, "eof": eof}


def format_time(seconds: float) -> str:
    """Format a file time, in seconds since the epoch, as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _entry(entry: BoxEntry) -> dict[str, Any]:
    return {
        **filenames.members("name", entry.name),
        "is_dir": entry.is_dir,
        "size": entry.size,
        "mtime": format_time(entry.mtime),
    }


async def _write(call: Call) -> dict[str, Any]:
    data = decode(call.args["data"], call.args["encoding"])
    mode = None if call.args["mode"] is None else _mode(call.args["mode"])
    path = call.args["path"]
    access = BoxAccess(call.args["box"], kind="reference", why="mcp")
    attach = call.operations.boxes.attach(call.principal, access, call.progress())
    async with attach as attachment, box_files(attachment.tunnel) as files:
        append = call.args["append"]
        size, created = await files.write(path_bytes(call), data, mode, append=append)
    return {"path": path, "size": size, "created": created}


def path_bytes(call: Call) -> bytes:
    """Return the argument `path` as bytes."""
    path: str = call.args["path"]
    return unquote_to_bytes(path) if call.args["encoded"] else path.encode("utf-8")


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise BadRequest("mode must be octal, for example 0644 or 0755")
    return mode


_PATH = Param(
    "path",
    "string",
    "the path in the box; a relative path starts at the home directory",
    True,
    minimum=1,
)
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
        "Read a part of a file in a box, or list a directory. Data that is not UTF-8 is returned "
        "in base64.",
        _read,
        (REF, _PATH, OFFSET, LIMIT, ENCODED_PATH),
        READ_RESULT,
        READ_OPTIONAL,
        read_only=True,
    ),
    Tool(
        "box_write",
        "Write a file in a box",
        "Write a file in a box, and create its parent directories. The file is replaced "
        "atomically, or extended with `append`.",
        _write,
        (
            REF,
            _PATH,
            DATA,
            ENCODING_OF_DATA,
            Param(
                "mode",
                "string",
                "octal permissions (default: those of the existing file, or 0644)",
                maximum=5,
            ),
            Param("append", "boolean", "append data to the existing file", default=False),
            ENCODED_PATH,
        ),
        {"path": STRING, "size": INTEGER, "created": BOOLEAN},
        destructive=True,
    ),
)
