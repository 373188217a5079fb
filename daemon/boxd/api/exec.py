"""Protocol adapter only. `POST /v1/exec/{spec}`: one command in a box, streamed or buffered.

The body is read in its own task while output flows, so that input and output overlap.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

from boxd.api.auth import authenticate
from boxd.api.body import IDLE_S, Body, ClientGone
from boxd.api.buffered import BufferedOutput
from boxd.api.exchange import cancel, exchange_of
from boxd.api.headers import header, media_type, path_text, query_values, query_workspace
from boxd.api.sse import EventStream
from boxd.boxes.exec import (
    MAX_COMMAND,
    MAX_HEADER,
    ExecRequest,
    ExecRun,
    parse_header,
    parse_plain,
    running,
)
from boxd.errors import BadRequest, BoxdError, TooLarge, Unavailable

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from starlette.types import Receive, Scope, Send

    from boxd.api.exchange import Exchange
    from boxd.boxes.lifecycle import Attachment
    from boxd.operations import Operations

    Attach: TypeAlias = AbstractAsyncContextManager[Attachment]

PREFIX = "/v1/exec/"
STREAM_TYPE = "application/x-svc-exec"
PLAIN_TYPE = "text/plain"
LOST_CODE = 255
"""Exit code of a stream whose box went away, as ssh has it."""


class ExecEndpoint:
    """Serves exec; holds nothing between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        principal = await authenticate(scope, self._operations)
        spec = path_text(scope["path"][len(PREFIX) :])
        query = scope["query_string"]
        ws, streamed = query_workspace(query), _streamed(query)
        body = Body(receive, idle=IDLE_S)
        try:
            request = await _read_request(header(scope["headers"], b"content-type"), body)
        except ClientGone:
            return
        body.idle = None  # what follows is the command's input
        exchange = exchange_of(scope)
        attach = self._operations.attach(principal, spec, ws, kind="spec", why="exec", run_box=True)
        if streamed:
            await _serve_streamed(exchange, attach, request, body, EventStream(send))
        else:
            with self._operations.keeping(principal) as room:
                await _serve_buffered(exchange, attach, request, body, BufferedOutput(room))


async def _serve_streamed(
    exchange: Exchange, attach: Attach, request: ExecRequest, body: Body, events: EventStream
) -> None:
    try:
        async with attach as held, running(held.tunnel, request, held.env) as run:
            await exchange.while_connected(_stream(run, body, events))
    except BoxdError as error:
        # A key is over, or an administrator ended it. No `exit`: how the command would have
        # ended nobody knows, and a client must not take a number for it; the cut cannot be
        # taken for an end.
        await events.last_words(str(error))
        raise


async def _serve_buffered(
    exchange: Exchange, attach: Attach, request: ExecRequest, body: Body, output: BufferedOutput
) -> None:
    async with attach as held, running(held.tunnel, request, held.env) as run:
        await exchange.while_connected(_collect(run, body, output))
    # The box is let go of: a client that takes its time holds it no longer.
    await exchange.while_connected(output.answer(exchange))


async def _stream(run: ExecRun, body: Body, events: EventStream) -> None:
    await events.start()
    side = (
        asyncio.create_task(_feed(run, body), name="exec input"),
        asyncio.create_task(events.keepalive(), name="exec keepalive"),
    )
    try:
        code = await run.pump(events.chunk)
    except Unavailable as error:
        await events.chunk("stderr", f"boxd: {error}\n".encode())
        code = LOST_CODE
    finally:
        await cancel(*side)
    await events.finish(b"exit", json.dumps({"code": code}).encode())


async def _collect(run: ExecRun, body: Body, output: BufferedOutput) -> None:
    started = time.monotonic()
    feed = asyncio.create_task(_feed(run, body), name="exec input")
    try:
        code = await run.pump(output.keep)
    finally:
        await cancel(feed)
    output.end(code, round((time.monotonic() - started) * 1000))


async def _feed(run: ExecRun, body: Body) -> None:
    """The rest of the body to standard input. A client that goes is noticed elsewhere."""
    try:
        while (data := await body.next()) is not None:
            await run.write(data)
    except ClientGone:
        return
    run.write_eof()


async def _read_request(content_type: bytes | None, body: Body) -> ExecRequest:
    kind = media_type(content_type)
    if kind == STREAM_TYPE:
        line = await body.line(MAX_HEADER)
        if line is None:
            raise BadRequest(f"the exec header is longer than {MAX_HEADER} bytes; it ends at a LF")
        return parse_header(line)
    if kind == PLAIN_TYPE:
        text = await body.whole(MAX_COMMAND)
        if text is None:
            raise TooLarge(f"the command is longer than {MAX_COMMAND} bytes")
        return parse_plain(text)
    raise BadRequest(f"Content-Type must be {STREAM_TYPE} or {PLAIN_TYPE}")


def _streamed(query: bytes) -> bool:
    values = set(query_values(query, b"stream"))
    if values <= {b"true"}:
        return True
    if values == {b"false"}:
        return False
    raise BadRequest("?stream= is true or false")
