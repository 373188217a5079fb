"""Protocol adapter only. `GET /v1/boxes/{ref}/watch`: changes of files in a box, as events."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from box_guest.shared.watch_messages import END, OVERFLOW, FileEvent
from boxd.errors import BadRequest, BoxdError, Unavailable
from boxd.http.description.boxes import REF
from boxd.http.description.operation import WS, Operation, errors, query, ref, switch
from boxd.http.requests.auth import authenticate
from boxd.http.requests.exchange import cancel, exchange_of
from boxd.http.requests.headers import path_text, query_flag, query_values, query_workspace
from boxd.http.requests.sse import EventStream
from boxd.names import filenames

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.operations import Operations
    from boxd.tunnel.watches import WatchReader

TEMPLATE = "/v1/boxes/{ref}/watch"
_EVENTS = (
    'event: change\ndata: {"path": "/home/a", "kind": "created", "is_dir": false}\n\n'
    ": keepalive\n\n"
)
_WATCH = Operation(
    "watchFiles",
    "Files",
    "Watch the files of a box",
    "Reports changes in a directory of the box as they happen. The answer begins when the watch"
    " is active. Changes of the same path within 50 ms are joined. A watch covers at most 8192"
    " directories of one file system. /wrk cannot be watched: its kernel does not see changes"
    " that others make. A suspended box resumes first, and the watch keeps it awake.",
    {
        "200": {
            "description": "Changes as events, until the client disconnects.",
            "content": {"text/event-stream": {"schema": ref("FileEvent"), "example": _EVENTS}},
        },
        **errors(404, 409, 413, 429, 504, 507),
    },
    (
        REF,
        WS,
        {
            **query("path", "The directory.", type="string", minLength=1),
            "required": True,
            "example": "/home",
        },
        switch("recursive", "`true` includes the directories below it."),
    ),
)
OPERATIONS = {
    "get": _WATCH,
    "head": replace(
        _WATCH,
        id="headWatch",
        summary="Check a directory before a watch",
        about="Like GET, without the body.",
    ),
}


class WatchEndpoint:
    """Serves file watches. It keeps no state between requests."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        principal = await authenticate(scope, self._operations)
        box, line = path_text(scope["path"].split("/")[3]), scope["query_string"]
        paths = set(query_values(line, b"path"))
        if len(paths) != 1:
            raise BadRequest("the watch needs one ?path=, the path of a directory")
        opening = self._operations.watches.watch_files(
            principal,
            box,
            query_workspace(line),
            paths.pop(),
            recursive=query_flag(line, "recursive", default=False),
        )
        events, head = EventStream(send), scope["method"] == "HEAD"
        try:
            async with opening as watch:
                serving = events.head() if head else _stream(watch, events)
                await exchange_of(scope).while_connected(serving)
        except BoxdError as error:
            await events.failed(str(error))
            raise


async def _stream(watch: WatchReader, events: EventStream) -> None:
    await events.start()
    keepalive = asyncio.create_task(events.keepalive(), name="file watch keepalive")
    try:
        async with aclosing(watch.events()) as changes:
            async for change in changes:
                if change.kind == END:
                    break
                await _send(change, events)
            else:
                raise Unavailable("the box ended the watch without a reason; start it again")
    finally:
        await cancel(keepalive)
    await events.finish(b"end", json.dumps({"reason": change.reason}).encode())


async def _send(change: FileEvent, events: EventStream) -> None:
    if change.kind == OVERFLOW:
        await events.event("overflow", {})
        return
    members: dict[str, object] = {**_path("path", change.path), "kind": change.kind}
    members["is_dir"] = change.is_dir
    if change.source is not None:
        members |= _path("from", change.source)
    await events.event("change", members)


def _path(name: str, path: str) -> dict[str, str]:
    return filenames.members(name, path.encode("utf-8", "surrogateescape"))
