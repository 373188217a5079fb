"""Protocol adapter only. Ports of boxes over HTTP: `/v1/boxes/{box}/proxy/{port}/{path...}`.

One way for both forms, the API's path and preview hosts: a `Place` tells where a request goes.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from boxd.api.body import Body, ClientGone
from boxd.api.bridge import bridge
from boxd.api.calls import Call, client_of
from boxd.api.cookies import set_lines
from boxd.api.errors import Answer
from boxd.api.exchange import cancel, exchange_of
from boxd.api.headers import decode_path, path_text
from boxd.api.rewriting import Place, response_lines
from boxd.api.sockets import socket_of
from boxd.api.upstream import Upstream
from boxd.api.visitors import admit, check_origin
from boxd.errors import BadName, NotFound
from boxd.names.preview import parse_port

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from boxd.api.visitors import Visitor
    from boxd.model.box import Box
    from boxd.operations import Operations
    from boxd.tunnel.stream import ByteStream

_SEGMENTS = 6
"""Of the prefix, with the empty one before the first slash."""


class ProxyEndpoint:
    """Serves ports of boxes; holds nothing between requests."""

    def __init__(self, operations: Operations, *, partitioned: bool = False) -> None:
        """`partitioned`: the cookie is kept apart for each site that shows an app in a frame."""
        self._operations = operations
        self._partitioned = partitioned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request of the path form."""
        place = place_of(scope["raw_path"])
        visitor = await admit(scope, self._operations, place)
        if not place.path and scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            # Without its slash the app's relative links, and its cookies, would go elsewhere.
            query = scope["query_string"]
            target = place.prefix + b"/" + (b"?" + query if query else b"")
            await exchange_of(scope).answer(Answer(307, b"", [(b"location", target)]))
            return
        await self._serve(scope, receive, send, place, visitor)

    async def serve(self, scope: Scope, receive: Receive, send: Send, place: Place) -> None:
        """Serves one request, or one WebSocket, for a place."""
        visitor = await admit(scope, self._operations, place)
        await self._serve(scope, receive, send, place, visitor)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, place: Place, visitor: Visitor
    ) -> None:
        client = client_of(scope)
        check_origin(visitor, scope, client)
        attach = self._operations.attach(
            *(visitor.principal, visitor.box or place.box),
            kind="reference",
            why="proxy",
            secrets=False,
        )
        call = Call(scope, place, client, visitor)
        async with attach as held:
            stream = await self._operations.dial(held, place.port)
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
        with suppress(ConnectionError):  # what the server said before it cut is read below
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
        value = await self._operations.open_proxy_session(
            call.visitor.principal, box, place.port, place.host
        )
        paths: tuple[bytes, ...] = (b"/",)
        if place.host is None:
            paths = (b"/v1/boxes/%s/proxy/%d/" % (box.id.encode(), place.port), place.prefix + b"/")
        tls = call.client.scheme == "https"
        return set_lines(value, paths, tls=tls, partitioned=self._partitioned)


def place_of(raw_path: bytes) -> Place:
    """The place that a path of the API names. NotFound for what is no port."""
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
    """The request's body. Neither a client that goes nor a server that takes no more matters here:
    the one is noticed elsewhere, the other may have answered."""
    with suppress(ClientGone, ConnectionError):
        while (data := await body.next()) is not None:
            await upstream.body(data)
        await upstream.end()
