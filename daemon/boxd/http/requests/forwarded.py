"""Protocol adapter only. Clients behind a proxy: their address, the host, and whether TLS is used.

Forwarded headers count only from trusted peers. uvicorn reads X-Forwarded-For and -Proto, and
replaces the peer with the client in the scope. This module also stores the address of the peer.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from boxd.http.requests.headers import header

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PROXIES = "boxd.proxies"
"""Key in a scope: the `Proxies` of the listener. If absent, no peer is trusted."""
PEER = "boxd.peer"
"""Key in a scope: the address at the other end of the connection."""


class Proxies:
    """The trusted proxies. `trusted`: addresses and networks, comma-separated; else ValueError."""

    def __init__(self, trusted: str) -> None:
        self.networks = [ip_network(each.strip()) for each in trusted.split(",")]

    def trust(self, address: str) -> bool:
        """Return whether forwarded headers from this address count.

        A malformed address is not trusted.
        """
        try:
            peer = ip_address(address)
        except ValueError:
            return False
        return any(peer in network for network in self.networks)


class Forwarded:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, trusted: str) -> None:
        self._proxies = Proxies(trusted)
        self._reader = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", app), trusted))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one WebSocket."""
        if (client := scope.get("client")) is not None:
            peer = _plain(client[0])
            scope["client"] = (peer, client[1])
            scope[PEER] = peer
        scope[PROXIES] = self._proxies
        await self._reader(scope, receive, send)


def by_proxy(scope: Scope) -> bool:
    """Return whether the connection comes from a trusted proxy."""
    proxies = cast("Proxies | None", scope.get(PROXIES))
    return proxies is not None and proxies.trust(scope.get(PEER, ""))


def of_proxy(scope: Scope) -> bool:
    """Return whether a trusted proxy sends the request for itself, and names no client."""
    if not by_proxy(scope):
        return False
    return cast("Proxies", scope[PROXIES]).trust(scope["client"][0])


def asked_host(scope: Scope) -> str:
    """Return the host that the client asked for, with its port if given; empty: no host."""
    return [*named_hosts(scope), ""][0]


def named_hosts(scope: Scope) -> list[str]:
    """Return all hosts that the request names: `X-Forwarded-Host` of a trusted proxy, then `Host`.

    A page in a browser on this machine can set `X-Forwarded-Host`, but cannot change `Host`.
    """
    hosts = []
    if by_proxy(scope):
        forwarded = header(scope["headers"], b"x-forwarded-host")
        first = (forwarded or b"").split(b",")[0].strip()
        if first:
            hosts.append(first.decode("latin-1"))
    if (host := header(scope["headers"], b"host")) is not None:
        hosts.append(host.decode("latin-1"))
    return hosts


def _plain(address: str) -> str:
    """Return the IPv4 address of an IPv4-mapped IPv6 address; other addresses unchanged."""
    prefix = "::ffff:"
    return address.removeprefix(prefix) if "." in address else address
