"""Protocol adapter only. `/v1/mcp`: who comes, before the MCP plane serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from boxd.api.auth import authenticate
from boxd.api.body import IDLE_S, Body, ClientGone
from boxd.api.errors import Refusal
from boxd.api.exchange import exchange_of
from boxd.api.headers import header, joined, media_type
from boxd.api.sockets import socket_of
from boxd.errors import Forbidden, TooLarge

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Receive, Scope, Send

    from boxd.api.headers import HeaderLines
    from boxd.api.origins import Origins
    from boxd.api.sockets import Socket
    from boxd.operations import Operations
    from boxd.principal import Principal

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of one message, as on a WebSocket."""
_JSON = frozenset({"application/json", "application/*", "*/*"})
_EVENTS = frozenset({"text/event-stream", "text/*", "*/*"})


@dataclass(frozen=True, slots=True)
class McpRequest:
    """One HTTP request, as the plane takes it."""

    scope: Scope
    receive: Receive
    send: Send
    closed: asyncio.Event
    body: bytes
    session: str | None
    version: str | None


class Plane(Protocol):
    """The MCP plane, as HTTP knows it."""

    async def serve_socket(self, principal: Principal, socket: Socket) -> None:
        """One WebSocket, from its handshake on."""
        ...

    async def serve_request(self, principal: Principal, method: str, request: McpRequest) -> None:
        """One request."""
        ...


class McpEndpoint:
    """Serves `/v1/mcp`; holds nothing between requests."""

    def __init__(self, operations: Operations, plane: Plane, origins: Origins) -> None:
        """Pages of `origins` may come, beside those of this very service."""
        self._operations = operations
        self._plane = plane
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or one WebSocket."""
        if scope["type"] == "websocket":
            # Any page may come: what it shows is a key, and no cookie counts.
            principal = await authenticate(scope, self._operations, query_key=True)
            await self._plane.serve_socket(principal, socket_of(scope))
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
            raise TooLarge(f"a message has at most {MAX_MESSAGE} bytes")
        request = McpRequest(
            *(scope, receive, send, exchange_of(scope).closed, body),
            session=_text(lines, b"mcp-session-id"),
            version=_text(lines, b"mcp-protocol-version"),
        )
        await self._plane.serve_request(principal, scope["method"], request)

    def _check_origin(self, scope: Scope) -> None:
        """Refuses pages that are strangers; what is no browser says nothing."""
        origin = _text(scope["headers"], b"origin")
        if origin is None or self._origins.named(scope["headers"]) is not None:
            return
        host = _text(scope["headers"], b"host")
        if origin.lower() != f"{scope['scheme']}://{host}".lower():
            raise Forbidden("pages of this origin may not use MCP here: see --api-origins")


def _check_types(method: str, lines: HeaderLines) -> None:
    if method == "POST" and media_type(header(lines, b"content-type")) != "application/json":
        raise Refusal(415, "Content-Type must be application/json", [])
    if method == "DELETE":
        return
    accepted = {media_type(one) for one in (joined(lines, b"accept") or b"").split(b",")}
    if not accepted & _EVENTS or (method == "POST" and not accepted & _JSON):
        text = "Accept must have application/json and text/event-stream"
        raise Refusal(406, text if method == "POST" else "Accept must have text/event-stream", [])


def _text(lines: HeaderLines, name: bytes) -> str | None:
    found = header(lines, name)
    return None if found is None else found.decode("latin-1")
