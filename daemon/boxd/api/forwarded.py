"""Protocol adapter only. What stands behind a proxy: who asks, for which host, and whether by TLS.

Forwarded headers count from trusted peers alone. uvicorn reads X-Forwarded-For and -Proto, and puts
the client in the place of the peer; here is kept who the peer was.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from boxd.api.headers import header

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PROXIES = "boxd.proxies"
"""Key in a scope: the `Proxies` of the listener. Missing where there is none: nobody is trusted."""
PEER = "boxd.peer"
"""Key in a scope: the address at the other end of the connection."""


class Proxies:
    """Addresses and networks, with commas. Raises ValueError for anything else."""

    def __init__(self, trusted: str) -> None:
        self.networks = [ip_network(each.strip()) for each in trusted.split(",")]

    def trust(self, address: str) -> bool:
        """Whether forwarded headers from this address count. No address is trusted by mistake."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.networks)


class Forwarded:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, trusted: str) -> None:
        self._proxies = Proxies(trusted)
        self._reader = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", app), trusted))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or one WebSocket."""
        if (client := scope.get("client")) is not None:
            peer = _plain(client[0])
            scope["client"] = (peer, client[1])
            scope[PEER] = peer
        scope[PROXIES] = self._proxies
        await self._reader(scope, receive, send)


def by_proxy(scope: Scope) -> bool:
    """Whether the connection comes from a trusted proxy."""
    proxies = cast("Proxies | None", scope.get(PROXIES))
    return proxies is not None and proxies.trust(scope.get(PEER, ""))


def of_proxy(scope: Scope) -> bool:
    """Whether a trusted proxy asks for itself: for whom else it asks, it says."""
    if not by_proxy(scope):
        return False
    return cast("Proxies", scope[PROXIES]).trust(scope["client"][0])


def asked_host(scope: Scope) -> str:
    """The host that the client asked for, with its port if it gave one; empty: it gave none."""
    if by_proxy(scope):
        told = header(scope["headers"], b"x-forwarded-host")
        first = (told or b"").split(b",")[0].strip()
        if first:
            return first.decode("latin-1")
    return (header(scope["headers"], b"host") or b"").decode("latin-1")


def _plain(address: str) -> str:
    """An IPv4 address that a listener on all addresses shows as one of IPv6."""
    prefix = "::ffff:"
    return address.removeprefix(prefix) if "." in address else address
