"""Protocol adapter only. Pages of other origins: what a browser is told of them (CORS).

A browser lets a page of another origin read an answer only if the answer names that origin, and
asks before it sends more than a form could: by a preflight, OPTIONS without any credential. Only
origins that the operator has listed are named, one by one; to all others this says nothing. What a
page shows is a key, never a cookie, so that no answer allows credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from boxd.api.exchange import exchange_of
from boxd.api.headers import header

if TYPE_CHECKING:
    from starlette.types import Scope

    from boxd.api.headers import HeaderLines

PREFLIGHT = "OPTIONS"
MAX_AGE_S = 600
"""How long a browser may go by the answer to a preflight."""
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
)
"""What clients of MCP send."""
EXPOSED = ("Mcp-Session-Id", "WWW-Authenticate")
"""What a page may read of an answer, beside what it always may."""


class Origins:
    """Those that are listed, as browsers write them: `https://app.example.com`."""

    def __init__(self, listed: tuple[str, ...]) -> None:
        self._listed = frozenset(listed)

    def __bool__(self) -> bool:
        return bool(self._listed)

    def named(self, lines: HeaderLines) -> str | None:
        """The listed origin that a request comes from; None: it comes from no such page."""
        origin = header(lines, b"origin")
        text = None if origin is None else origin.decode("latin-1").lower()
        return text if text in self._listed else None

    async def preflighted(self, scope: Scope, methods: tuple[str, ...]) -> bool:
        """Has the answer to a request, whatever it becomes, say that its page may read it; answers
        preflights, about `methods`, and tells whether it was one.
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
