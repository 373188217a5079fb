"""Protocol adapter only. `POST /v1/exec/{spec}`: one command in a box, streamed or buffered.

The body is read in its own task while output flows, so that input and output overlap.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import TYPE_CHECKING, TypeVar

from boxd.api.auth import authenticate
from boxd.api.body import Body, ClientGone
from boxd.api.errors import Answer
from boxd.api.guard import exchange_of
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
from boxd.errors import BadRequest, TooLarge, Unavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from boxd.api.guard import Exchange
    from boxd.operations import Operations

T = TypeVar("T")

PREFIX = "/v1/exec/"
STREAM_TYPE = "application/x-svc-exec"
PLAIN_TYPE = "text/plain"
BUFFER_BYTES = 16 * 1024 * 1024
"""Most bytes of one stream in a buffered answer."""
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
        body = Body(receive)
        try:
            request = await _read_request(header(scope["headers"], b"content-type"), body)
        except ClientGone:
            return
        exchange = exchange_of(scope)
        serve = _stream if streamed else _buffer
        attach = self._operations.attach(principal, spec, ws, kind="spec", why="exec", run_box=True)
        async with attach as held, running(held.tunnel, request, held.env) as run:
            await _while_connected(exchange, serve(run, body, exchange, send))


async def _while_connected(exchange: Exchange, serving: Coroutine[Any, Any, None]) -> None:
    """Runs `serving` to its end, or until the client has gone, whichever is first."""
    work = asyncio.create_task(serving, name="exec output")
    gone = asyncio.create_task(exchange.closed.wait(), name="exec client")
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        await _cancel(work, gone)


async def _stream(run: ExecRun, body: Body, exchange: Exchange, send: Send) -> None:
    events = EventStream(send)
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
        await _cancel(*side)
    await events.finish(b"exit", json.dumps({"code": code}).encode())


async def _buffer(run: ExecRun, body: Body, exchange: Exchange, send: Send) -> None:
    started = time.monotonic()
    held = {"stdout": bytearray(), "stderr": bytearray()}

    async def keep(stream: str, data: bytes) -> None:
        held[stream] += data
        if len(held[stream]) > BUFFER_BYTES:
            raise TooLarge(
                f"{stream} is more than {BUFFER_BYTES} bytes; leave out ?stream=false to have it"
                " streamed"
            )

    feed = asyncio.create_task(_feed(run, body), name="exec input")
    try:
        code = await run.pump(keep)
    finally:
        await _cancel(feed)
    result = {
        "exit_code": code,
        "stdout": base64.b64encode(held["stdout"]).decode(),
        "stderr": base64.b64encode(held["stderr"]).decode(),
        "duration_ms": round((time.monotonic() - started) * 1000),
    }
    await exchange.answer(Answer(200, json.dumps(result).encode()))


async def _feed(run: ExecRun, body: Body) -> None:
    """The rest of the body to standard input. A client that goes is noticed elsewhere."""
    try:
        while (data := await body.next()) is not None:
            await run.write(data)
    except ClientGone:
        return
    run.write_eof()


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
