"""Protocol adapter only. Cross-origin requests (CORS).

A browser lets a page of another origin read a response only if the response names that origin.
Before a request that a form could not send, the browser sends a preflight: OPTIONS without
credentials. A response names one origin from the operator's list; other origins get no CORS
headers. Pages authenticate with a key, never with a cookie, so no response allows credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.http.requests.exchange import exchange_of
from boxd.http.requests.headers import header

if TYPE_CHECKING:
    from starlette.types import Scope

    from boxd.http.requests.headers import HeaderLines

PREFLIGHT = "OPTIONS"
MAX_AGE_S = 600
"""Seconds that a browser may cache the response to a preflight."""
REQUEST_HEADERS = (
    "Authorization",
    "X-Api-Key",
    "Content-Type",
    "Accept",
    "Mcp-Session-Id",
    "Mcp-Protocol-Version",
    "Mcp-Method",
    "Mcp-Name",
    "Last-Event-ID",
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "Prefer",
    "Range",
    "Traceparent",
)
"""Request headers that clients of the API and of MCP send."""
EXPOSED = (
    "Mcp-Session-Id",
    "WWW-Authenticate",
    "Content-Range",
    "ETag",
    "Idempotent-Replayed",
    "Location",
    "Preference-Applied",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "Retry-After",
    "X-Exit-Code",
    "X-Request-Id",
)
"""Response headers that a page may read, besides those that browsers always expose."""


class Origins:
    """The origins that the operator listed, as browsers write them: `https://app.example.com`."""

    def __init__(self, listed: tuple[str, ...]) -> None:
        self._listed = frozenset(listed)

    def __bool__(self) -> bool:
        return bool(self._listed)

    def named(self, lines: HeaderLines) -> str | None:
        """Return the listed origin that a request comes from, or None."""
        origin = header(lines, b"origin")
        text = None if origin is None else origin.decode("latin-1").lower()
        return text if text in self._listed else None

    async def preflighted(self, scope: Scope, methods: tuple[str, ...]) -> bool:
        """Add CORS headers to the response of a request, and answer it if it is a preflight.

        `methods`: the methods that a preflight allows. Returns whether the request was a preflight.
        """
        lines = scope["headers"]
        origin = self.named(lines)
        if origin is None:
            return False
        exchange = exchange_of(scope)
        exchange.more_headers = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"vary", b"Origin"),
        ]
        asked = header(lines, b"access-control-request-method")
        if scope["method"] != PREFLIGHT or asked is None:
            exposed = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
            exchange.more_headers.append(exposed)
            return False
        allowed = [
            (b"access-control-allow-methods", ", ".join(methods).encode()),
            (b"access-control-allow-headers", ", ".join(REQUEST_HEADERS).encode()),
            (b"access-control-max-age", b"%d" % MAX_AGE_S),
        ]
        await exchange.send({"type": "http.response.start", "status": 204, "headers": allowed})
        await exchange.send({"type": "http.response.body", "body": b""})
        return True
