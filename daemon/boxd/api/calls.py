"""Protocol adapter only. A request on its way to a program in a box: what is sent there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.api.exchange import exchange_of
from boxd.api.forwarded import asked_host
from boxd.api.headers import has_body, header
from boxd.api.rewriting import Client, request_lines, without_keys

if TYPE_CHECKING:
    from starlette.types import Scope

    from boxd.api.exchange import Exchange
    from boxd.api.rewriting import Place
    from boxd.api.visitors import Visitor


class Call:
    """An admitted request for a place."""

    def __init__(self, scope: Scope, place: Place, client: Client, visitor: Visitor) -> None:
        self._scope = scope
        self.place = place
        self.client = client
        self.visitor = visitor

    @property
    def exchange(self) -> Exchange:
        """What becomes of it, if it is no WebSocket."""
        return exchange_of(self._scope)

    @property
    def method(self) -> str:
        """As it came."""
        method: str = self._scope["method"]
        return method

    @property
    def target(self) -> bytes:
        """Path and query, as they came, without what is not the app's."""
        asked: bytes = self._scope["query_string"]
        query = without_keys(asked, self.visitor.is_key)
        return (self.place.path or b"/") + (b"?" + query if query else b"")

    @property
    def lines(self) -> list[tuple[bytes, bytes]]:
        """Header lines without framing."""
        return request_lines(self._scope["headers"], self.place, self.client, self.visitor.is_key)

    @property
    def framing(self) -> tuple[bytes, bytes] | None:
        """The line that announces the body; also of an empty one that the client announced."""
        lines = self._scope["headers"]
        length = header(lines, b"content-length")
        if length is not None:
            return (b"content-length", length)
        return (b"transfer-encoding", b"chunked") if has_body(lines) else None


def client_of(scope: Scope) -> Client:
    """Who asks, as far as an app is told; what a trusted proxy says of it counts."""
    address = scope.get("client")
    scheme = "https" if scope.get("scheme") in ("https", "wss") else "http"
    return Client(address[0] if address else "", scheme, asked_host(scope).encode("latin-1"))
