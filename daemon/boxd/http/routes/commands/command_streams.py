"""Protocol adapter only. Output and input of background commands, as streams."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from boxd.boxes.commands.background import checked_offset
from boxd.errors import BadRequest, BoxdError, Unavailable
from boxd.http.description.boxes import REF
from boxd.http.description.forms import BYTES
from boxd.http.description.operation import (
    JSON_TYPE,
    WS,
    Operation,
    answer,
    errors,
    header,
    query,
    ref,
    switch,
)
from boxd.http.requests.auth import authenticate
from boxd.http.requests.body import Body, ClientGone
from boxd.http.requests.errors import Answer
from boxd.http.requests.exchange import cancel, exchange_of
from boxd.http.requests.headers import header as header_line
from boxd.http.requests.headers import path_text, query_flag, query_values, query_workspace
from boxd.http.requests.sse import EventStream
from boxd.http.routes.commands.background import COMMAND, EXAMPLE
from boxd.http.routes.commands.buffered import STREAM_BYTES, BufferedOutput
from boxd.operations.agent_requests.commands import CommandRef

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from boxd.http.requests.exchange import Exchange
    from boxd.operations import Operations
    from boxd.operations.agent_requests.commands import CommandOutput

OUTPUT_TEMPLATE = "/v1/boxes/{ref}/commands/{command}/output"
STDIN_TEMPLATE = "/v1/boxes/{ref}/commands/{command}/stdin"
_EVENTS = (
    "id: 6\nevent: stdout\ndata: aGVsbG8K\n\n"
    "id: 11\nevent: stderr\ndata: b29wcwo=\n\n"
    ": keepalive\n\n"
    'event: exit\ndata: {"code": 0}\n\n'
)
_STORED = {
    "stdout": "aGVsbG8K",
    "stderr": "",
    "next_offset": 6,
    "dropped_bytes": 0,
    "state": "exited",
    "exit_code": 0,
}
_READ_OUTPUT = Operation(
    "getCommandOutput",
    "Commands",
    "Read the output of a background command",
    "Sends the stored output from `offset` on, and then further output until the command has"
    " ended. The `id` of each event is the offset after it: a client that reconnects with"
    " `Last-Event-ID` misses nothing and gets nothing twice. If the key expires or is revoked,"
    " the stream ends and the command continues. A suspended box resumes first, and the stream"
    " keeps it awake.",
    {
        "200": {
            "description": "Output as events. With `follow=false`, one object with the output"
            " that is stored at the moment.",
            "content": {
                "text/event-stream": {"schema": ref("CommandEvent"), "example": _EVENTS},
                JSON_TYPE: {"schema": ref("CommandOutput"), "example": _STORED},
            },
        },
        **errors(404, 409, 413, 429, 504, 507),
    },
    (
        REF,
        COMMAND,
        WS,
        query(
            "offset",
            "The first byte, counted over both streams; by default 0. `Last-Event-ID` has"
            " precedence.",
            type="integer",
            minimum=0,
        ),
        switch("follow", "`false` returns one object with the stored output."),
        query(
            "limit",
            "The maximum number of bytes with `follow=false`.",
            type="integer",
            minimum=1,
            maximum=STREAM_BYTES,
            default=STREAM_BYTES,
        ),
        header(
            "Last-Event-ID",
            "The `id` of the last received event.",
            type="string",
            pattern="^[0-9]{1,18}$",
        ),
    ),
)
OUTPUT_OPERATIONS = {
    "get": _READ_OUTPUT,
    "head": replace(
        _READ_OUTPUT,
        id="headCommandOutput",
        summary="Check the output of a background command",
        about="Like GET, without the body.",
    ),
}
STDIN_OPERATIONS = {
    "post": Operation(
        "writeCommandInput",
        "Commands",
        "Write to a background command",
        "Writes the body to the standard input of the command while it arrives. Answers when the"
        " command has accepted all of it; requests to the same command wait for each other."
        " Returns 409 if its input is closed.",
        {
            "200": answer("The command.", ref("Command"), {**EXAMPLE, "stdin_open": True}),
            **errors(404, 409, 413, 429, 504, 507),
        },
        (REF, COMMAND, WS, switch("close", "`true` closes the input after the body.")),
        {"content": {"application/octet-stream": {"schema": BYTES, "example": "hello\n"}}},
    )
}


class OutputEndpoint:
    """Serves the output of background commands. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal = await authenticate(scope, self._operations)
        command_ref, offset = _command(scope), _offset(scope)
        exchange, commands = exchange_of(scope), self._operations.commands
        if query_flag(scope["query_string"], "follow", default=True):
            opening = commands.command_output(principal, command_ref, offset, follow=True)
            await _follow(exchange, opening, EventStream(send), head=scope["method"] == "HEAD")
            return
        limit = _limit(scope)
        opening = commands.command_output(principal, command_ref, offset, follow=False, limit=limit)
        with self._operations.output.room(principal.owner) as room:
            output = BufferedOutput(room)
            async with opening as reader:
                await exchange.while_connected(_collect(reader, output, offset))
            await exchange.while_connected(output.answer(exchange))


class StdinEndpoint:
    """Serves writes to background commands. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal = await authenticate(scope, self._operations)
        command_ref, exchange = _command(scope), exchange_of(scope)
        close = query_flag(scope["query_string"], "close", default=False)
        data = body_pieces(Body(receive))

        async def write() -> None:
            command = await self._operations.commands.write_command(
                principal, command_ref, data, close=close
            )
            await exchange.answer(Answer(200, json.dumps(command.to_json()).encode()))

        with suppress(ClientGone):
            await exchange.while_connected(write())


async def body_pieces(body: Body) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a body. Raises ClientGone."""
    while (data := await body.next()) is not None:
        yield data


async def _follow(
    exchange: Exchange,
    opening: AbstractAsyncContextManager[CommandOutput],
    events: EventStream,
    *,
    head: bool,
) -> None:
    try:
        async with opening as output:
            await exchange.while_connected(events.head() if head else _stream(output, events))
    except BoxdError as error:
        # The key has expired, or the tunnel was lost. The stream ends without `exit`: the client
        # continues at the offset that it has.
        await events.failed(str(error))
        raise


async def _stream(output: CommandOutput, events: EventStream) -> None:
    await events.start()
    keepalive = asyncio.create_task(events.keepalive(), name="command output keepalive")
    try:
        async with aclosing(output.pieces()) as pieces:
            async for piece in pieces:
                if piece.stream is None:
                    await events.event("dropped", {"bytes": piece.dropped}, piece.next_offset)
                else:
                    await events.chunk_before(piece.stream, piece.data, piece.next_offset)
    finally:
        await cancel(keepalive)
    code = output.command.state.exit_code
    if code is None:
        raise Unavailable("the box ended the output of a command that still runs")
    await events.finish(b"exit", json.dumps({"code": code}).encode())


async def _collect(reader: CommandOutput, output: BufferedOutput, offset: int) -> None:
    dropped = 0
    async with aclosing(reader.pieces()) as pieces:
        async for piece in pieces:
            offset, dropped = piece.next_offset, dropped + piece.dropped
            if piece.stream is not None:
                await output.keep(piece.stream, piece.data)
    description = reader.command.to_json()
    fields = {"next_offset": offset, "dropped_bytes": dropped}
    output.end_with(fields | {name: description[name] for name in ("state", "exit_code")})


def _command(scope: Scope) -> CommandRef:
    segments = scope["path"].split("/")
    ws = query_workspace(scope["query_string"])
    return CommandRef(path_text(segments[3]), path_text(segments[5]), ws)


def _offset(scope: Scope) -> int:
    queried = _number(scope, "offset", 0)
    line = header_line(scope["headers"], b"last-event-id")
    if line is not None:
        return checked_offset(line.decode("latin-1"))
    return queried


def _limit(scope: Scope) -> int:
    limit = _number(scope, "limit", STREAM_BYTES)
    if not 1 <= limit <= STREAM_BYTES:
        raise BadRequest(f"?limit= must be a whole number from 1 to {STREAM_BYTES}")
    return limit


def _number(scope: Scope, name: str, default: int) -> int:
    values = set(query_values(scope["query_string"], name.encode()))
    if not values:
        return default
    if len(values) > 1:
        raise BadRequest(f"the request has more than one ?{name}=; give one")
    return checked_offset(values.pop().decode("latin-1"))
