"""Protocol adapter only. `POST /v1/exec/{spec}`: one command in a box, streamed or buffered.

A separate task reads the body while output is sent, so input and output overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING

from msgspec import field

from boxd.boxes.commands.background import BackgroundRequest, parse_background_header
from boxd.boxes.commands.exec import (
    MAX_COMMAND,
    MAX_HEADER,
    ExecRequest,
    ExecRun,
    parse_header,
    parse_plain,
    running,
)
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest, BoxdError, TooLarge, Unavailable
from boxd.http.description.forms import BYTES
from boxd.http.description.operation import (
    JSON_TYPE,
    REFERENCE,
    WS,
    Operation,
    errors,
    path,
    query,
    ref,
)
from boxd.http.description.operation import header as header_parameter
from boxd.http.requests.auth import authenticate
from boxd.http.requests.body import IDLE_S, Body, ClientGone
from boxd.http.requests.errors import Answer
from boxd.http.requests.exchange import cancel, exchange_of
from boxd.http.requests.headers import (
    accepts_text,
    header,
    joined,
    media_type,
    path_text,
    query_flag,
    query_workspace,
)
from boxd.http.requests.json_body import MAX_JSON, JsonForm, parse_json
from boxd.http.requests.sse import EventStream
from boxd.http.routes.commands.background import EXAMPLE, location
from boxd.http.routes.commands.buffered import BufferedOutput
from boxd.http.routes.commands.command_streams import body_pieces
from boxd.http.routes.commands.text_output import TextStream

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from starlette.types import Receive, Scope, Send

    from boxd.boxes.lifecycle.holds import Attachment
    from boxd.http.requests.exchange import Exchange
    from boxd.operations import Operations
    from boxd.principal import Principal

    Attach: TypeAlias = AbstractAsyncContextManager[Attachment]
    Events: TypeAlias = EventStream | TextStream

PREFIX = "/v1/exec/"
RESPOND_ASYNC = b"respond-async"
"""The preference of a client that does not wait for the command."""
STREAM_TYPE = "application/x-svc-exec"
PLAIN_TYPE = "text/plain"
LOST_CODE = 255
"""Exit code of a stream whose box disappeared; ssh reports the same code."""
TEMPLATE = "/v1/exec/{spec...}"
SPEC = (
    REFERENCE.replace("a-z", "A-Za-z").removesuffix("$")
    + "!?(\\^[1-9][0-9]?[mhd])?(\\+[1-9][0-9]?[smh])?$"
)
"""Pattern of some box specs; names may be in upper case.

Images have more forms, but every match is a valid spec.
"""
_EVENTS = (
    "event: stdout\ndata: aGVsbG8K\n\n"
    "event: stderr\ndata: b29wcwo=\n\n"
    ": keepalive\n\n"
    'event: exit\ndata: {"code": 0}\n\n'
)
_RESULT = {"exit_code": 0, "stdout": "aGVsbG8K", "stderr": "", "duration_ms": 12}
OPERATIONS = {
    "post": Operation(
        "exec",
        "Commands",
        "Run a command",
        "Runs a command in a box, and creates or resumes the box first if needed. The body is the"
        " command's header and its standard input, or the command alone. The service reads the body"
        " while it sends output. An error before the command starts has its own status; after that"
        " the status is always 200. If the client disconnects, the command ends and the box stays.",
        {
            "200": {
                "description": "Output as events, each with base64; the last event is `exit`. With"
                " `stream=false`, one object after the command has ended. If `Accept` is"
                " `text/plain`, the output as it is, with `stream=false` the exit code in"
                " `X-Exit-Code`.",
                "content": {
                    "text/event-stream": {"schema": ref("ExecEvent"), "example": _EVENTS},
                    JSON_TYPE: {"schema": ref("ExecResult"), "example": _RESULT},
                    PLAIN_TYPE: {"schema": {"type": "string"}},
                },
            },
            "202": {
                "description": "The background command, with `Prefer: respond-async`.",
                "headers": {
                    "Location": {"schema": {"type": "string"}},
                    "Preference-Applied": {"schema": {"type": "string"}},
                },
                "content": {JSON_TYPE: {"schema": ref("Command"), "example": EXAMPLE}},
            },
            **errors(404, 409, 413, 429, 504, 507),
        },
        (
            path(
                "spec",
                "`[workspace/]name[+][!][:image|profile[:flavor]][^ttl][+duration]`. Creates the"
                " box if it does not exist; `^ttl` sets its deadline, counted from then. `!` makes"
                " the box durable.",
                "dev",
                pattern=SPEC,
            ),
            WS,
            query(
                "stream",
                "`false` returns one object after the command has ended.",
                type="string",
                enum=["true", "false"],
            ),
            header_parameter(
                "Prefer",
                "`respond-async` starts a background command, and answers when it runs and has"
                " accepted its input. It has no timeout by default, at most 7 days.",
                type="string",
            ),
        ),
        {
            "required": True,
            "content": {
                STREAM_TYPE: {
                    "schema": BYTES,
                    "example": '{"cmd": "tr a-z A-Z", "timeout_s": 10}\nhello\n',
                },
                PLAIN_TYPE: {"schema": {"type": "string", "minLength": 1}, "example": "echo hello"},
                JSON_TYPE: {"schema": ref("ExecBody"), "example": {"cmd": "echo hello"}},
            },
        },
    )
}


class ExecForm(JsonForm, kw_only=True):
    """The JSON form of an exec body. `stdin` is the whole standard input."""

    cmd: str
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: int | None = None
    stdin: str = ""


class ExecEndpoint:
    """Serves exec. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal = await authenticate(scope, self._operations)
        spec = path_text(scope["path"][len(PREFIX) :])
        query = scope["query_string"]
        ws, streamed = query_workspace(query), query_flag(query, "stream", default=True)
        body, kind = Body(receive, idle=IDLE_S), header(scope["headers"], b"content-type")
        if _is_async(joined(scope["headers"], b"prefer")):
            access = BoxAccess(spec, kind="spec", why="exec", ws=ws, run_box=True)
            exchange = exchange_of(scope)
            starting = self._start(exchange, principal, access, body, kind)
            with contextlib.suppress(ClientGone):
                await exchange.while_connected(starting)
            return
        try:
            request = await _read_request(kind, body)
        except ClientGone:
            return
        body.idle = None  # the rest is the command's input, which may pause
        exchange = exchange_of(scope)
        access = BoxAccess(spec, kind="spec", why="exec", ws=ws, run_box=True)
        attach = self._operations.boxes.attach(principal, access)
        as_text = accepts_text(scope["headers"])
        if streamed:
            stream = TextStream(send) if as_text else EventStream(send)
            await _serve_streamed(exchange, attach, request, body, stream)
            return
        with self._operations.output.room(principal.owner) as room:
            output = BufferedOutput(room)
            await _serve_buffered(exchange, attach, request, body, output)
            # The box is already detached, so a slow client does not keep it awake.
            answer = output.answer_text if as_text else output.answer
            await exchange.while_connected(answer(exchange))

    async def _start(
        self,
        exchange: Exchange,
        principal: Principal,
        access: BoxAccess,
        body: Body,
        kind: bytes | None,
    ) -> None:
        """Start the command in the background, with the rest of the body as its input."""
        request = await _read_background(kind, body)
        body.idle = None
        command = await self._operations.commands.start_command(
            principal, access, request, body_pieces(body)
        )
        headers = [
            (b"location", location(command.box, command.id).encode()),
            (b"preference-applied", RESPOND_ASYNC),
        ]
        await exchange.answer(Answer(202, json.dumps(command.to_json()).encode(), headers))


async def _serve_streamed(
    exchange: Exchange, attach: Attach, request: ExecRequest, body: Body, events: Events
) -> None:
    try:
        async with (
            attach as attachment,
            _running(attachment, request) as run,
        ):
            await exchange.while_connected(_stream(run, body, events))
    except BoxdError as error:
        # The key expired or was revoked, or an administrator ended the command. The stream ends
        # without `exit`: the exit code is unknown, and a client must not mistake an invented one
        # for the real one. Clients can tell an aborted stream from a complete one.
        await events.last_words(str(error))
        raise


async def _serve_buffered(
    exchange: Exchange, attach: Attach, request: ExecRequest, body: Body, output: BufferedOutput
) -> None:
    async with (
        attach as attachment,
        _running(attachment, request) as run,
    ):
        await exchange.while_connected(_collect(run, body, output))


def _running(attachment: Attachment, request: ExecRequest) -> AbstractAsyncContextManager[ExecRun]:
    return running(
        attachment.tunnel,
        request,
        attachment.env,
        attachment.oom,
        observer=attachment.observer,
    )


async def _stream(run: ExecRun, body: Body, events: Events) -> None:
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
    """Write the rest of the body to standard input. The exchange detects a disconnect."""
    try:
        while (data := await body.next()) is not None:
            await run.write(data)
    except ClientGone:
        return
    run.write_eof()


async def _read_request(content_type: bytes | None, body: Body) -> ExecRequest:
    kind = media_type(content_type)
    if kind == STREAM_TYPE:
        return parse_header(await _header_line(body))
    if kind == PLAIN_TYPE:
        text = await body.whole(MAX_COMMAND)
        if text is None:
            raise TooLarge(f"the command is longer than {MAX_COMMAND} bytes")
        return parse_plain(text)
    if kind == JSON_TYPE:
        form = await _read_form(body)
        return ExecRequest.checked(form.cmd, form.env, form.timeout_s)
    raise BadRequest(f"Content-Type must be {JSON_TYPE}, {STREAM_TYPE} or {PLAIN_TYPE}")


async def _read_form(body: Body) -> ExecForm:
    """Return the JSON form of a body; the rest of the body is then its standard input."""
    text = await body.whole(MAX_JSON)
    if text is None:
        raise TooLarge(f"the request body is longer than {MAX_JSON} bytes; send less")
    form = parse_json(text, ExecForm)
    body.put_back(form.stdin.encode())
    return form


async def _read_background(content_type: bytes | None, body: Body) -> BackgroundRequest:
    kind = media_type(content_type)
    if kind == JSON_TYPE:
        form = await _read_form(body)
        return BackgroundRequest.checked(
            form.cmd, form.env, form.timeout_s, stdin=True, keep_awake=True
        )
    if kind != STREAM_TYPE:
        return BackgroundRequest((await _read_request(content_type, body)).cmd, stdin=True)
    return parse_background_header(await _header_line(body))


async def _header_line(body: Body) -> bytes:
    line = await body.line(MAX_HEADER)
    if line is None:
        raise BadRequest(f"the exec header is longer than {MAX_HEADER} bytes; end it with a LF")
    return line


def _is_async(value: bytes | None) -> bool:
    """Return whether the value of `Prefer` contains `respond-async`."""
    preferences = (value or b"").split(b",")
    return any(
        preference.split(b";")[0].strip().lower() == RESPOND_ASYNC for preference in preferences
    )
