"""Protocol adapter only. `/v1/boxes/{box}/term`: a login shell in a box as a WebSocket.

Binary messages carry keystrokes and output; a text message resizes the terminal. Each WebSocket has
its own shell, which receives a hangup when the WebSocket ends. A terminal attaches only to existing
boxes and does not change them: it does not create a box, and does not mount /wrk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING

from boxd.boxes.commands.exec import exit_code
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest, Unavailable
from boxd.http.description.operation import (
    BROWSER_KEYS,
    REFERENCE,
    WS,
    Json,
    Operation,
    errors,
    path,
    query,
)
from boxd.http.description.schemas import UPGRADED
from boxd.http.requests.auth import authenticate
from boxd.http.requests.errors import Refusal
from boxd.http.requests.exchange import cancel
from boxd.http.requests.headers import path_text, query_values, query_workspace
from boxd.http.requests.websocket import GOING_AWAY, NORMAL, RESTART, socket_of
from boxd.tunnel.channel import Terminal

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.http.requests.websocket import Socket
    from boxd.operations import Operations
    from boxd.tunnel.channel import Exec

TEMPLATE = "/v1/boxes/{box}/term"
KIND = "xterm-256color"
COLUMNS, ROWS = 80, 24
MOST = 1000
"""Maximum number of columns, and of rows."""
MESSAGE_BYTES = 64 * 1024
_NUMBER = re.compile(rb"[0-9]{1,9}")
_BOX = path(
    "box",
    "A box by its name, by `workspace%2Fname`, by its id or by a prefix of its id.",
    "web",
    pattern=REFERENCE,
)


def _describe(name: str, summary: str, responses: Json) -> Operation:
    return Operation(
        name,
        "Commands",
        summary,
        "Starts a new login shell for each WebSocket. Binary frames carry keystrokes and output;"
        " the text frame `Resize` sets the size. When the shell ends, the service closes the"
        " WebSocket with code 1000 and reason `exit N`.",
        {**responses, **errors(404, 409, 426, 429, 504, 507)},
        (
            _BOX,
            WS,
            query("cols", f"Initial width in columns; default {COLUMNS}.", type="integer"),
            query("rows", f"Initial height in rows; default {ROWS}.", type="integer"),
        ),
        security=BROWSER_KEYS,
    )


OPERATIONS = {
    "get": _describe("terminalGet", "Open a terminal in a browser", {"101": UPGRADED}),
    "head": _describe("terminalHead", "Check whether a terminal would be refused", {}),
}


class TermEndpoint:
    """Serves terminals. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket. Answer 426 to other requests for a box that exists."""
        if scope["type"] == "http":
            principal = await authenticate(scope, self._operations, query_key=True)
            await self._operations.directory.resolve(principal, *_named(scope))
            raise Refusal(
                426,
                "a terminal is a WebSocket; send an upgrade request",
                [(b"upgrade", b"websocket")],
            )
        socket = socket_of(scope)
        code, reason = NORMAL, ""

        async def serve() -> None:
            nonlocal code, reason
            code, reason = await self._serve(scope, socket)

        await socket.while_connected(serve())
        await socket.close(code, reason)

    async def _serve(self, scope: Scope, socket: Socket) -> tuple[int, str]:
        """Serve a shell until it ends or the client closes. Return close code and reason."""
        principal = await authenticate(scope, self._operations, query_key=True)
        box, workspace = _named(scope)
        query = scope["query_string"]
        terminal = Terminal(KIND, (_size(query, b"cols", COLUMNS), _size(query, b"rows", ROWS)))
        access = BoxAccess(box, kind="reference", why="terminal", ws=workspace)
        async with self._operations.boxes.attach(principal, access) as attachment:
            shell = await attachment.tunnel.start(None, env=attachment.env, terminal=terminal)
            try:
                socket.limit(MESSAGE_BYTES)
                await socket.accept()
                if not await _run(shell, socket):
                    return NORMAL, ""
                try:
                    return NORMAL, f"exit {exit_code(await shell.wait())}"
                except Unavailable:
                    return (GOING_AWAY if attachment.hold.loss else RESTART), attachment.lost
            finally:
                with contextlib.suppress(TimeoutError):
                    await shell.end()


def _named(scope: Scope) -> tuple[str, str | None]:
    """Return the reference of the box, and the workspace of `?ws=`."""
    return path_text(scope["path"].split("/")[3]), query_workspace(scope["query_string"])


async def _run(shell: Exec, socket: Socket) -> bool:
    """Pass on input and output. Return True if the shell ended, False if the client closed."""
    output = asyncio.create_task(_show(shell, socket), name="terminal output")
    keys = asyncio.create_task(_type(shell, socket), name="terminal input")
    try:
        await asyncio.wait({output, keys}, return_when=asyncio.FIRST_COMPLETED)
        if not output.done():
            keys.result()
            return False
        output.result()
        return True
    finally:
        await cancel(output, keys)


async def _show(shell: Exec, socket: Socket) -> None:
    """Send output to the client. While the client does not read, the shell waits."""
    async for _, data in shell.output():
        await socket.send(data)


async def _type(shell: Exec, socket: Socket) -> None:
    """Send input to the shell. While the shell does not read, the client waits."""
    while (message := await socket.next()) is not None:
        if isinstance(message, bytes):
            await shell.write(message)
        elif (size := parse_resize(message)) is not None:
            shell.resize(*size)


def parse_resize(text: str) -> tuple[int, int] | None:
    """Parse `{"resize": {"cols", "rows"}}` to clamped columns and rows; None for other text."""
    try:
        size = json.loads(text)["resize"]
        columns, rows = size["cols"], size["rows"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    if not (
        type(columns) is int and type(rows) is int
    ):  # a bool is an int in Python, but not a size
        return None
    return _clamped(columns), _clamped(rows)


def _size(query: bytes, name: bytes, default: int) -> int:
    values = query_values(query, name)
    if not values:
        return default
    if _NUMBER.fullmatch(values[0]) is None:
        raise BadRequest(f"?{name.decode()}= must be a whole number from 1 to {MOST}")
    return _clamped(int(values[0]))


def _clamped(number: int) -> int:
    return min(max(number, 1), MOST)
