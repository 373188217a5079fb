"""Protocol adapter only. `POST /v1/batch/exec`: one command in several boxes at once.

The response is one stream of events. Each event names its box, so a client sees the output of all
boxes while they run. A box that fails does not end the others.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, field

from boxd.boxes.commands.exec import ExecRequest, running
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadRequest, BoxdError
from boxd.http.description.bodies import body_of
from boxd.http.description.operation import WS, Operation, errors, ref
from boxd.http.requests.auth import authenticate
from boxd.http.requests.exchange import cancel, exchange_of
from boxd.http.requests.headers import query_workspace
from boxd.http.requests.json_body import JsonForm, read_json
from boxd.http.requests.sse import MAX_RAW, EventStream
from boxd.names.words import parse_workspace

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.boxes.commands.exec import ExecRun
    from boxd.operations import Operations
    from boxd.principal import Principal

TEMPLATE = "/v1/batch/exec"
MAX_BOXES = 32
"""Maximum number of boxes of one batch."""
_EVENTS = (
    'event: stdout\ndata: {"box": "web", "data": "aGVsbG8K"}\n\n'
    'event: exit\ndata: {"box": "web", "code": 0}\n\n'
    "event: done\ndata: {}\n\n"
)


class Batch(JsonForm, kw_only=True):
    """The body of `execBatch`."""

    boxes: Annotated[
        list[str],
        Meta(
            description="The boxes, each as a spec; missing boxes are created.",
            min_length=1,
            max_length=MAX_BOXES,
        ),
    ]
    cmd: Annotated[str, Meta(description="The command; the login shell of each box runs it.")]
    env: Annotated[dict[str, str], Meta(description="Variables of the command.")] = field(
        default_factory=dict
    )
    timeout_s: Annotated[
        int | None, Meta(description="Seconds after which the command ends. Default: 300.")
    ] = None
    stdin: Annotated[str, Meta(description="The standard input in each box.")] = ""


OPERATIONS = {
    "post": Operation(
        "execBatch",
        "Commands",
        "Run a command in several boxes",
        "Runs one command in up to 32 boxes at the same time, and creates or resumes the boxes"
        " first if needed. An error of one box is an event; the others continue. If the client"
        " disconnects, all commands end.",
        {
            "200": {
                "description": "Events of all boxes; the last one is `done`.",
                "content": {"text/event-stream": {"schema": ref("BatchEvent"), "example": _EVENTS}},
            },
            **errors(413, 415, 429),
        },
        (WS,),
        body_of(Batch, boxes=["web", "api"], cmd="uname -a"),
    )
}


class BatchEndpoint:
    """Serves batches. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal = await authenticate(scope, self._operations)
        ws = query_workspace(scope["query_string"])
        ws = None if ws is None else parse_workspace(ws)
        batch = await read_json(scope, receive, Batch)
        if len(set(batch.boxes)) < len(batch.boxes):
            raise BadRequest("a batch names a box twice; name each box once")
        request = ExecRequest.checked(batch.cmd, batch.env, batch.timeout_s)
        events = EventStream(send)
        serving = self._serve(principal, batch, request, ws, events)
        await exchange_of(scope).while_connected(serving)

    async def _serve(
        self,
        principal: Principal,
        batch: Batch,
        request: ExecRequest,
        ws: str | None,
        events: EventStream,
    ) -> None:
        await events.start()
        keepalive = asyncio.create_task(events.keepalive(), name="batch keepalive")
        try:
            async with asyncio.TaskGroup() as group:
                for box in batch.boxes:
                    access = BoxAccess(box, kind="spec", why="exec", ws=ws, run_box=True)
                    run = self._run(principal, access, request, batch.stdin.encode(), events)
                    group.create_task(run, name="command of a batch")
        finally:
            await cancel(keepalive)
        await events.finish(b"done", b"{}")

    async def _run(
        self,
        principal: Principal,
        access: BoxAccess,
        request: ExecRequest,
        stdin: bytes,
        events: EventStream,
    ) -> None:
        """Run the command in one box, and report its output and its end. Raises no BoxdError."""
        box = str(access.target)

        async def emit(stream: str, data: bytes) -> None:
            for start in range(0, len(data), MAX_RAW):
                text = base64.b64encode(data[start : start + MAX_RAW]).decode("ascii")
                await events.event(stream, {"box": box, "data": text})

        try:
            async with (
                self._operations.boxes.attach(principal, access) as attachment,
                running(
                    attachment.tunnel,
                    request,
                    attachment.env,
                    attachment.oom,
                    observer=attachment.observer,
                ) as run,
            ):
                feed = asyncio.create_task(_feed(run, stdin), name="batch input")
                try:
                    code = await run.pump(emit)
                finally:
                    await cancel(feed)
        except BoxdError as error:
            named = self._operations.texts.named(str(error))
            failure = {"box": box, "status": error.http_status, "error": named}
            await events.event("failed", failure)
            return
        await events.event("exit", {"box": box, "code": code})


async def _feed(run: ExecRun, stdin: bytes) -> None:
    """Write the input, and close it."""
    await run.write(stdin)
    run.write_eof()
