"""Commands, files, ports, terminals and MCP: what streams both ways."""

from __future__ import annotations

from boxd.api.described.parts import (
    BROWSER_KEYS,
    JSON_TYPE,
    NO_KEY,
    PROXY_KEYS,
    REFERENCE,
    WS,
    Json,
    answer,
    errors,
    header,
    operation,
    path,
    query,
    ref,
    tags,
)

BYTES: Json = {"type": "string", "format": "binary"}
UPGRADED: Json = {
    "description": "A WebSocket. A refusal is an ordinary answer with its status.",
    "headers": {"Upgrade": {"schema": {"type": "string", "const": "websocket"}}},
}
_EVENTS = (
    "event: stdout\ndata: aGVsbG8K\n\n"
    "event: stderr\ndata: b29wcwo=\n\n"
    ": keepalive\n\n"
    'event: exit\ndata: {"code": 0}\n\n'
)
PROXY_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
"""The methods of OpenAPI; the proxy takes all others, too, but CONNECT and TRACE."""
SPEC = REFERENCE.removesuffix("$") + "(\\^[1-9][0-9]?[mhd])?(\\+[1-9][0-9]?[smh])?$"
"""Not all specs, as images have more forms; but all of these are some."""
_SPEC = path(
    "spec",
    "`[workspace/]name[:image|profile[:flavor]][^ttl][+duration]`. A box that is not there is made;"
    " `^ttl` is its deadline from then on.",
    "dev",
    pattern=SPEC,
)
_NAME = r"([^/.\x00][^/\x00]*|\.[^/.\x00][^/\x00]*|\.\.[^/\x00]+)"
FILE = f"^/*{_NAME}(/+{_NAME})*/*$"
"""As it stands in the document; without anything it is the root."""
_FILE = path(
    "path",
    "A path on the drive. Its bytes are percent-decoded once; a slash at its end means a"
    " directory. `..`, `.` and NUL are refused.",
    "notes.txt",
    pattern=FILE,
)
_BOX = path(
    "box",
    "A box by its name, by `workspace%2Fname`, by its id or a beginning.",
    "web",
    pattern=REFERENCE,
)
_TAG = {"ETag": {"description": "Strong.", "schema": {"type": "string"}}}
_CONDITIONS = (
    tags("If-Match", "Only if the file has one of these entity tags: else 412."),
    tags("If-None-Match", "Only if it has none of these; `*`: only if there is no file."),
)

_EXEC = operation(
    "exec",
    "Commands",
    "Run a command",
    "In a box that is made, or woken, for it. The body is the command's header and its standard"
    " input, or the command alone; it is read while output is sent. What fails before the command"
    " runs is an error status; from then on the answer is 200. A client that leaves ends the"
    " command, never the box.",
    {
        "200": {
            "description": "Output as events, each with base64; `exit` once, as the last. With"
            " `stream=false` everything at the end.",
            "content": {
                "text/event-stream": {"schema": ref("ExecEvent"), "example": _EVENTS},
                JSON_TYPE: {
                    "schema": ref("ExecResult"),
                    "example": {
                        "exit_code": 0,
                        "stdout": "aGVsbG8K",
                        "stderr": "",
                        "duration_ms": 12,
                    },
                },
            },
        },
        **errors(404, 409, 413, 429, 504, 507),
    },
    _SPEC,
    WS,
    query("stream", "`false`: one answer at the end.", type="string", enum=["true", "false"]),
    body={
        "required": True,
        "content": {
            "application/x-svc-exec": {
                "schema": BYTES,
                "example": '{"cmd": "tr a-z A-Z", "timeout_s": 10}\nhello\n',
            },
            "text/plain": {"schema": {"type": "string", "minLength": 1}, "example": "echo hello"},
        },
    },
)


def _wrk_get(name: str, summary: str, about: str) -> Json:
    file: Json = {
        "description": "The file's bytes, or the directory.",
        "headers": _TAG,
        "content": {"*/*": {"schema": BYTES}, JSON_TYPE: {"schema": {}}},
    }
    return operation(
        name,
        "Files",
        summary,
        about,
        {
            "200": file,
            "206": {**file, "description": "The range of the file."},
            "304": answer("The client has it already."),
            **errors(404, 409, 412, 416, 507),
        },
        *(_FILE, WS),
        query("download", "The browser is told to keep the file.", type="string"),
        header("Range", "`bytes=0-99`; several ranges get the whole file.", type="string"),
        tags("If-None-Match", "304 if the file has one of these entity tags."),
    )


_WRK: Json = {
    "get": _wrk_get(
        "readFile",
        "Read a file or list a directory",
        "A file comes with its entity tag, and its type by its name; a directory as JSON"
        " (`Directory`).",
    ),
    "head": _wrk_get("headFile", "Look at a file", "As GET, without the body."),
    "put": operation(
        "writeFile",
        "Files",
        "Write a file, or make a directory",
        "All or nothing: the file is there once its last byte is stored. Directories on the way"
        " are made. With a slash at the end, and no body, a directory is made.",
        {
            "201": answer("It is new.", headers=_TAG),
            "204": answer("It replaced what was there.", headers=_TAG),
            **errors(404, 409, 412, 413, 429, 507),
        },
        *(_FILE, WS),
        *_CONDITIONS,
        body={"content": {"application/octet-stream": {"schema": BYTES}}},
    ),
    "delete": operation(
        "removeFile",
        "Files",
        "Remove a file, or a directory with all that is in it",
        "The root of the drive stays.",
        {"204": answer("It is gone."), **errors(404, 409, 412, 507)},
        *(_FILE, WS),
        *_CONDITIONS,
    ),
}


def _proxy(method: str) -> Json:
    answers: Json = {
        "default": {
            "description": "What the app answers, streamed. A `Location` to its own origin, and the"
            " `Path` of its cookies, are kept below the prefix.",
            "content": {"*/*": {"schema": BYTES}},
        }
    }
    if method == "get":
        answers["101"] = UPGRADED
    return operation(
        f"proxy{method.capitalize()}",
        "Ports",
        f"{method.upper()} of an app in a box",
        "The app sees the path behind the port, the query and the body as they were sent, and"
        " neither the key nor the cookie. A first visit with `key` sets a cookie for this box and"
        " port, for an hour. Any other method goes through alike.",
        {**answers, **errors(404, 409, 502, 504)},
        _BOX,
        path("port", "A TCP port in the box.", "3000", pattern="^[1-9][0-9]{0,4}$"),
        path("path", "The app's path; it may be empty.", "index.html"),
        security=PROXY_KEYS,
    )


_RPC: Json = {"content": {JSON_TYPE: {"schema": ref("JsonRpc")}}}
_SESSION = header(
    "Mcp-Session-Id", "The session, as the answer to `initialize` named it.", type="string"
)


def _terminal(method: str) -> Json:
    responses: Json = {"101": UPGRADED} if method == "get" else {}
    return operation(
        f"terminal{method.capitalize()}",
        "Commands",
        "A terminal in a browser" if method == "get" else "Whether a terminal would be refused",
        "A new login shell for each WebSocket. Binary frames are keys and output; the text frame"
        " `Resize` sets the size. The shell's end closes it with 1000 `exit N`.",
        {**responses, **errors(404, 409, 426, 429, 504, 507)},
        *(_BOX, WS),
        query("cols", "Width at the beginning; 80 without it.", type="integer"),
        query("rows", "Height at the beginning; 24 without it.", type="integer"),
        security=BROWSER_KEYS,
    )


PATHS: dict[str, Json] = {
    "/v1/exec/{spec}": {"post": _EXEC},
    "/v1/wrk/{path}": _WRK,
    "/v1/boxes/{box}/proxy/{port}/{path}": {method: _proxy(method) for method in PROXY_METHODS},
    "/v1/boxes/{box}/term": {"get": _terminal("get"), "head": _terminal("head")},
    "/v1/mcp": {
        "get": operation(
            "mcpSocket",
            "MCP",
            "The MCP plane",
            "As a WebSocket with one message a frame, or the stream of events of a session.",
            {
                "101": UPGRADED,
                "200": {
                    "description": "Messages of the session, as events.",
                    "content": {"text/event-stream": {"schema": ref("Event")}},
                },
                **errors(404, 406, 409, 429),
            },
            _SESSION,
            security=BROWSER_KEYS,
        ),
        "post": operation(
            *("mcpCall", "MCP", "One message of MCP", "Streamable HTTP."),
            {
                "200": {
                    "description": "The answer, or events that end with it.",
                    "content": {
                        **_RPC["content"],
                        "text/event-stream": {"schema": ref("Event")},
                    },
                },
                "202": answer("Taken; there is no answer to it."),
                **errors(404, 406, 409, 413, 415, 429),
                "400": {
                    "description": "Not HTTP's, or not the protocol's: then as JSON-RPC has it.",
                    "content": {JSON_TYPE: {"schema": {"anyOf": [ref("Error"), ref("JsonRpc")]}}},
                },
            },
            _SESSION,
            body={"required": True, **_RPC},
        ),
        "delete": operation(
            *("mcpEnd", "MCP", "End a session of MCP", "What it does is ended with it."),
            {"204": answer("It is over."), "200": answer("It is over."), **errors(404, 405)},
            _SESSION,
        ),
        "options": operation(
            *("mcpPreflight", "MCP", "Whether a page may use MCP"),
            "What browsers ask before a page of another origin sends anything. Only pages of the"
            " origins that the operator has listed are told that they may; what they send needs a"
            " key like anything else.",
            {"204": answer("It may: see the headers."), **errors(405, key=False)},
            security=NO_KEY,
        ),
    },
}
