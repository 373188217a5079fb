"""Protocol adapter only. A request that the proxy sends to an app in a box."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.proxy.rewriting import Client, request_lines, without_keys
from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.forwarded import asked_host
from boxd.http.requests.headers import has_body, header

if TYPE_CHECKING:
    from starlette.types import Scope

    from boxd.http.proxy.rewriting import Place
    from boxd.http.proxy.visitors import Visitor
    from boxd.http.requests.exchange import Exchange


class Call:
    """An authenticated request for a place."""

    def __init__(self, scope: Scope, place: Place, client: Client, visitor: Visitor) -> None:
        self._scope = scope
        self.place = place
        self.client = client
        self.visitor = visitor

    @property
    def exchange(self) -> Exchange:
        """The exchange of the request, if it is not a WebSocket."""
        return exchange_of(self._scope)

    @property
    def method(self) -> str:
        """The method, unchanged."""
        method: str = self._scope["method"]
        return method

    @property
    def target(self) -> bytes:
        """Path and query for the app: unchanged, but without API keys."""
        raw: bytes = self._scope["query_string"]
        query = without_keys(raw, self.visitor.is_key)
        return (self.place.path or b"/") + (b"?" + query if query else b"")

    @property
    def lines(self) -> list[tuple[bytes, bytes]]:
        """Header lines for the app, without framing."""
        return request_lines(self._scope["headers"], self.place, self.client, self.visitor.is_key)

    @property
    def framing(self) -> tuple[bytes, bytes] | None:
        """The header line that announces the body, or None if the client announced none."""
        lines = self._scope["headers"]
        length = header(lines, b"content-length")
        if length is not None:
            return (b"content-length", length)
        return (b"transfer-encoding", b"chunked") if has_body(lines) else None


def client_of(scope: Scope) -> Client:
    """Return the client as the app sees it, with the forwarded headers of a trusted proxy."""
    address = scope.get("client")
    scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
    return Client(address[0] if address else "", scheme, asked_host(scope).encode("latin-1"))
