"""Protocol adapter only. `/v1/mcp`: checks a request before the MCP service serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from boxd.errors import Forbidden, TooLarge
from boxd.http.description.operation import (
    BROWSER_KEYS,
    JSON_TYPE,
    NO_KEY,
    Json,
    Operation,
    answer,
    errors,
    ref,
)
from boxd.http.description.operation import header as header_parameter
from boxd.http.description.schemas import UPGRADED
from boxd.http.requests.auth import authenticate
from boxd.http.requests.body import IDLE_S, Body, ClientGone
from boxd.http.requests.errors import Refusal
from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.headers import header, joined, media_type
from boxd.http.requests.websocket import socket_of

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Receive, Scope, Send

    from boxd.http.middleware.cors import Origins
    from boxd.http.middleware.hosts import ServedHosts
    from boxd.http.requests.headers import HeaderLines
    from boxd.http.requests.websocket import Socket
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_MESSAGE = 16 * 1024 * 1024
"""Maximum size of one message in bytes, the same as on a WebSocket."""
_JSON = frozenset({"application/json", "application/*", "*/*"})
_EVENTS = frozenset({"text/event-stream", "text/*", "*/*"})
TEMPLATE = "/v1/mcp"
METHODS = ("GET", "POST", "DELETE")
_SESSION = header_parameter(
    "Mcp-Session-Id", "The session id from the response to `initialize`.", type="string"
)
_LAST_EVENT = header_parameter(
    "Last-Event-ID",
    "The `id` of the last event that the client received; resumes the stream of that event.",
    type="string",
)
_RESUMING = (
    " In a session every event has an `id`. A client that lost a stream sends GET with the last id"
    " in `Last-Event-ID` and receives the rest: of the answer to a request, or of the"
    " notifications. A lost stream does not cancel its request. The service cancels a request"
    " without a connection after 5 minutes, and stores its answer for 5 minutes (at most 64 answers"
    " of a session and 16 MiB of an owner). An id that resumes nothing returns 400. Progress sent"
    " while no connection reads it is lost. Events of requests without a session have no ids; a"
    " lost connection cancels these requests."
)
_STREAM: Json = {"text/event-stream": {"schema": ref("Event")}}
_MESSAGE: Json = {JSON_TYPE: {"schema": ref("JsonRpc")}}
OPERATIONS = {
    "get": Operation(
        "mcpSocket",
        "MCP",
        "Connect to MCP",
        "Opens a WebSocket with one message a frame, or the event stream of a session." + _RESUMING,
        {
            "101": UPGRADED,
            "200": {"description": "Messages of the session, as events.", "content": _STREAM},
            **errors(404, 406, 409, 421, 429),
        },
        (_SESSION, _LAST_EVENT),
        security=BROWSER_KEYS,
    ),
    "post": Operation(
        "mcpCall",
        "MCP",
        "Send one MCP message",
        "Streamable HTTP. GET resumes the answer to a request of a session.",
        {
            "200": {
                "description": "The answer, or events of which the last one is the answer.",
                "content": {**_MESSAGE, **_STREAM},
            },
            "202": answer("The service has accepted the message, which needs no answer."),
            **errors(404, 406, 409, 413, 415, 421, 429),
            "400": {
                "description": "The HTTP request is malformed, or the message violates the"
                " protocol; the second case is a JSON-RPC error.",
                "content": {JSON_TYPE: {"schema": {"anyOf": [ref("Error"), ref("JsonRpc")]}}},
            },
        },
        (_SESSION,),
        {"required": True, "content": _MESSAGE},
    ),
    "delete": Operation(
        "mcpEnd",
        "MCP",
        "End an MCP session",
        "Cancels all requests of the session.",
        {
            "204": answer("The session has ended."),
            "200": answer("The session has ended."),
            **errors(404, 405, 421),
        },
        (_SESSION,),
    ),
    "options": Operation(
        "mcpPreflight",
        "MCP",
        "Check whether a page may use MCP",
        "Browsers send this preflight before a page of another origin sends a request. Only pages"
        " of the origins that the operator listed are allowed. Their requests still need a key.",
        {
            "204": answer(
                "The origin is allowed; the headers list the methods and headers that it may use."
            ),
            **errors(405, key=False),
        },
        security=NO_KEY,
    ),
}


@dataclass(frozen=True, slots=True)
class McpRequest:
    """One HTTP request for the MCP service. `closed` is set when the client has disconnected."""

    scope: Scope
    receive: Receive
    send: Send
    closed: asyncio.Event
    body: bytes
    session: str | None
    version: str | None
    last_event: str | None


class McpService(Protocol):
    """The MCP service, as this layer uses it."""

    async def serve_socket(self, principal: Principal, socket: Socket) -> None:
        """Serve one WebSocket, beginning with its handshake."""
        ...

    async def serve_request(self, principal: Principal, method: str, request: McpRequest) -> None:
        """Serve one request."""
        ...


class McpEndpoint:
    """Serves `/v1/mcp`. It keeps no state between requests."""

    def __init__(
        self, operations: Operations, mcp_service: McpService, origins: Origins, hosts: ServedHosts
    ) -> None:
        """`origins`: whose pages may use MCP, besides the service's own pages at `hosts`."""
        self._hosts = hosts
        self._operations = operations
        self._mcp = mcp_service
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one WebSocket."""
        self._hosts.check(scope)
        if scope["type"] == "websocket":
            # Pages of any origin may connect: they authenticate with a key, and cookies are
            # ignored.
            principal = await authenticate(scope, self._operations, query_key=True)
            await self._mcp.serve_socket(principal, socket_of(scope))
            return
        principal = await authenticate(scope, self._operations)
        lines = scope["headers"]
        self._check_origin(scope)
        _check_types(scope["method"], lines)
        try:
            body = await Body(receive, idle=IDLE_S).whole(MAX_MESSAGE)
        except ClientGone:
            return
        if body is None:
            raise TooLarge(f"the message is longer than {MAX_MESSAGE} bytes; send a shorter one")
        request = McpRequest(
            scope=scope,
            receive=receive,
            send=send,
            closed=exchange_of(scope).closed,
            body=body,
            session=_text(lines, b"mcp-session-id"),
            version=_text(lines, b"mcp-protocol-version"),
            last_event=_text(lines, b"last-event-id"),
        )
        await self._mcp.serve_request(principal, scope["method"], request)

    def _check_origin(self, scope: Scope) -> None:
        """Raise Forbidden for a page of another origin. Only browsers send `Origin`."""
        origin = _text(scope["headers"], b"origin")
        if origin is None or self._origins.named(scope["headers"]) is not None:
            return
        host = _text(scope["headers"], b"host")
        if origin.lower() != f"{scope['scheme']}://{host}".lower():
            raise Forbidden(
                "pages of this origin may not use MCP here; the operator can list the origin in"
                " --api-origins"
            )


def _check_types(method: str, lines: HeaderLines) -> None:
    if method == "POST" and media_type(header(lines, b"content-type")) != "application/json":
        raise Refusal(415, "Content-Type must be application/json", [])
    if method == "DELETE":
        return
    accepted = {media_type(one) for one in (joined(lines, b"accept") or b"").split(b",")}
    if not accepted & _EVENTS or (method == "POST" and not accepted & _JSON):
        text = "Accept must list application/json and text/event-stream"
        raise Refusal(406, text if method == "POST" else "Accept must list text/event-stream", [])


def _text(lines: HeaderLines, name: bytes) -> str | None:
    value = header(lines, name)
    return None if value is None else value.decode("latin-1")
