"""Protocol adapter only. `/v1/boxes/{box}/term`: a login shell in a box as a WebSocket.

Binary messages are keystrokes and output; a text resizes. Each socket has a shell of its own, which
is hung up when the socket goes. It attaches to boxes that exist and changes nothing about them: it
makes none, and a box that has no /wrk gets none for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING

from boxd.api.auth import authenticate
from boxd.api.errors import Refusal
from boxd.api.exchange import cancel
from boxd.api.headers import path_text, query_values, query_workspace
from boxd.api.sockets import GOING_AWAY, NORMAL, RESTART, socket_of
from boxd.boxes.exec import exit_code
from boxd.errors import BadRequest, Unavailable
from boxd.tunnel.channel import Terminal

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.api.sockets import Socket
    from boxd.operations import Operations
    from boxd.tunnel.channel import Exec

TEMPLATE = "/v1/boxes/{box}/term"
KIND = "xterm-256color"
COLUMNS, ROWS = 80, 24
MOST = 1000
"""Columns, and rows."""
MESSAGE_BYTES = 64 * 1024
_NUMBER = re.compile(rb"[0-9]{1,9}")


class TermEndpoint:
    """Serves terminals; holds nothing between them."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one WebSocket; tells other requests what is here."""
        if scope["type"] == "http":
            principal = await authenticate(scope, self._operations, query_key=True)
            await self._operations.resolve(principal, *_named(scope))
            raise Refusal(426, "a terminal is a WebSocket", [(b"upgrade", b"websocket")])
        socket = socket_of(scope)
        code, reason = NORMAL, ""

        async def serve() -> None:
            nonlocal code, reason
            code, reason = await self._serve(scope, socket)

        await socket.while_connected(serve())
        await socket.close(code, reason)

    async def _serve(self, scope: Scope, socket: Socket) -> tuple[int, str]:
        """Until the shell has ended, or the client has closed; the close code and its reason."""
        principal = await authenticate(scope, self._operations, query_key=True)
        box, workspace = _named(scope)
        query = scope["query_string"]
        terminal = Terminal(KIND, (_size(query, b"cols", COLUMNS), _size(query, b"rows", ROWS)))
        attach = self._operations.attach(
            principal, box, workspace, kind="reference", why="terminal"
        )
        async with attach as held:
            shell = await held.tunnel.start(None, env=held.env, terminal=terminal)
            try:
                socket.limit(MESSAGE_BYTES)
                await socket.accept()
                if not await _run(shell, socket):
                    return NORMAL, ""
                try:
                    return NORMAL, f"exit {exit_code(await shell.wait())}"
                except Unavailable:
                    return (GOING_AWAY if held.hold.lost else RESTART), held.lost
            finally:
                with contextlib.suppress(TimeoutError):
                    await shell.end()


def _named(scope: Scope) -> tuple[str, str | None]:
    """The reference of the box, and the workspace that `?ws=` names."""
    return path_text(scope["path"].split("/")[3]), query_workspace(scope["query_string"])


async def _run(shell: Exec, socket: Socket) -> bool:
    """Both ways at once. True: the shell has ended; False: the client has closed."""
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
    """Output to the client. While it does not read, the box's side is held."""
    async for _, data in shell.output():
        await socket.send(data)


async def _type(shell: Exec, socket: Socket) -> None:
    """Input to the shell. While the shell does not read, the client's side is held."""
    while (message := await socket.next()) is not None:
        if isinstance(message, bytes):
            await shell.write(message)
        elif (size := parse_resize(message)) is not None:
            shell.resize(*size)


def parse_resize(text: str) -> tuple[int, int] | None:
    """Columns and rows, clamped, of `{"resize": {"cols", "rows"}}`; None for any other text."""
    try:
        size = json.loads(text)["resize"]
        columns, rows = size["cols"], size["rows"]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    if not (type(columns) is int and type(rows) is int):  # a bool is no number
        return None
    return _clamped(columns), _clamped(rows)


def _size(query: bytes, name: bytes, usual: int) -> int:
    values = query_values(query, name)
    if not values:
        return usual
    if _NUMBER.fullmatch(values[0]) is None:
        raise BadRequest(f"?{name.decode()}= is a whole number from 1 to {MOST}")
    return _clamped(int(values[0]))


def _clamped(number: int) -> int:
    return min(max(number, 1), MOST)
