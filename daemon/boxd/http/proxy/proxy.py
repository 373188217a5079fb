"""Protocol adapter only. Ports of boxes over HTTP: `/v1/boxes/{box}/proxy/{port}/{path...}`.

The path form and preview hosts share this code. A `Place` says where a request goes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.boxes.presence.attachments import PROXIED
from boxd.boxes.state.requests import BoxAccess
from boxd.errors import BadName, NotFound
from boxd.http.description.forms import BYTES
from boxd.http.description.operation import PROXY_KEYS, REFERENCE, Json, Operation, errors, path
from boxd.http.description.schemas import UPGRADED
from boxd.http.proxy.bridge import bridge
from boxd.http.proxy.calls import Call, client_of
from boxd.http.proxy.cookies import set_lines
from boxd.http.proxy.rewriting import Place, response_lines
from boxd.http.proxy.upstream import Upstream
from boxd.http.proxy.visitors import admit, check_origin
from boxd.http.requests.body import Body, ClientGone
from boxd.http.requests.errors import Answer
from boxd.http.requests.exchange import cancel, exchange_of
from boxd.http.requests.headers import decode_path, path_text
from boxd.http.requests.websocket import socket_of
from boxd.names.preview import parse_port

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.http.proxy.visitors import Visitor
    from boxd.model.box import Box
    from boxd.operations import Operations
    from boxd.tunnel.stream import ByteStream

TEMPLATE = "/v1/boxes/{box}/proxy/{port}/{path...}"
_SEGMENTS = 6
"""Segments of the prefix, with the empty one before the first slash."""
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
"""The methods that OpenAPI can describe. The proxy accepts any method but CONNECT and TRACE."""


def _describe(method: str) -> Operation:
    answers: Json = {
        "default": {
            "description": "The app's response, streamed. The proxy rewrites a `Location` to the"
            " app's own origin, and the `Path` of its cookies, to stay below the prefix.",
            "content": {"*/*": {"schema": BYTES}},
        }
    }
    if method == "get":
        answers["101"] = UPGRADED
    return Operation(
        f"proxy{method.capitalize()}",
        "Ports",
        f"Send {method.upper()} to an app in a box",
        "The app receives the path after the port, the query and the body unchanged. It receives"
        " neither the key nor the cookie. A first visit with `key` sets a cookie that is valid for"
        " this box and port for an hour. The proxy passes on any other method in the same way.",
        {**answers, **errors(404, 409, 502, 504)},
        (
            path(
                "box",
                "A box by its name, by `workspace%2Fname`, by its id or by a prefix of its id.",
                "web",
                pattern=REFERENCE,
            ),
            path("port", "A TCP port in the box.", "3000", pattern="^[1-9][0-9]{0,4}$"),
            path("path", "The app's path; it may be empty.", "index.html"),
        ),
        security=PROXY_KEYS,
    )


OPERATIONS = {method: _describe(method) for method in METHODS}


class ProxyEndpoint:
    """Serves ports of boxes. It keeps no state between requests."""

    def __init__(self, operations: Operations, *, partitioned: bool = False) -> None:
        """`partitioned`: partition the cookie by embedding site (CHIPS)."""
        self._operations = operations
        self._partitioned = partitioned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of the path form."""
        place = place_of(scope["raw_path"])
        visitor = await admit(scope, self._operations, place)
        if not place.path and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            # Without the slash the app's relative links and its cookies would resolve wrongly.
            query = scope["query_string"]
            target = place.prefix + b"/" + (b"?" + query if query else b"")
            await exchange_of(scope).answer(Answer(307, b"", [(b"location", target)]))
            return
        await self._serve(scope, receive, send, place, visitor)

    async def serve(self, scope: Scope, receive: Receive, send: Send, place: Place) -> None:
        """Serve one request or one WebSocket for a place."""
        visitor = await admit(scope, self._operations, place)
        await self._serve(scope, receive, send, place, visitor)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, place: Place, visitor: Visitor
    ) -> None:
        client = client_of(scope)
        check_origin(visitor, scope, client)
        target = visitor.box or place.box
        access = BoxAccess(target, kind="reference", why=PROXIED, secrets=False)
        call = Call(scope, place, client, visitor)
        async with self._operations.boxes.attach(visitor.principal, access) as held:
            stream = await self._operations.preview_sessions.dial(held, place.port)
            try:
                if scope["type"] == "websocket":
                    await bridge(socket_of(scope), call, stream)
                else:
                    await call.exchange.while_connected(
                        self._pass_on(call, Body(receive), send, stream, held.box)
                    )
            finally:
                stream.close()

    async def _pass_on(
        self, call: Call, body: Body, send: Send, stream: ByteStream, box: Box
    ) -> None:
        upstream = Upstream(stream, call.place.port)
        with suppress(
            ConnectionError
        ):  # the data that the server sent before it closed is read below
            await upstream.request(call.method, call.target, call.lines, call.framing)
        feeding = asyncio.create_task(_feed(upstream, body), name="proxy input")
        try:
            head = await upstream.head()
            lines = response_lines(head.lines, call.place, call.client)
            if call.visitor.by == "query":
                lines += await self._cookie(call, box)
            call.exchange.passed_on = True
            await send({"type": "http.response.start", "status": head.status, "headers": lines})
            async for data in upstream.read():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await cancel(feeding)

    async def _cookie(self, call: Call, box: Box) -> list[tuple[bytes, bytes]]:
        place = call.place
        value = await self._operations.preview_sessions.open_proxy_session(
            call.visitor.principal, box, place.port, place.host
        )
        paths: tuple[bytes, ...] = (b"/",)
        if place.host is None:
            paths = (b"/v1/boxes/%s/proxy/%d/" % (box.id.encode(), place.port), place.prefix + b"/")
        tls = call.client.scheme == "https"
        return set_lines(value, paths, tls=tls, partitioned=self._partitioned)


def place_of(raw_path: bytes) -> Place:
    """Return the place that a path of the API names. Raises NotFound for an invalid port."""
    segments = raw_path.split(b"/")
    rest = segments[_SEGMENTS:]
    prefix = b"/".join(segments[:_SEGMENTS])
    box, port = (path_text(decode_path(segments[index])) for index in (3, 5))
    try:
        number = parse_port(port)
    except BadName as error:
        raise NotFound(str(error)) from None
    return Place(box, number, b"/" + b"/".join(rest) if rest else b"", prefix)


async def _feed(upstream: Upstream, body: Body) -> None:
    """Send the request's body to the app.

    Stops silently if the client disconnects, which the exchange detects. Also stops silently if the
    app closes its side, because it may already have answered.
    """
    with suppress(ClientGone, ConnectionError):
        while (data := await body.next()) is not None:
            await upstream.body(data)
        await upstream.end()
