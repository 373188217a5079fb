"""Sources of clients: the addresses that count as one client for limits."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Network = IPv4Network | IPv6Network


def source_of(address: str) -> str:
    """Return the source of an address: the IPv4 address, or the /64 of an IPv6 address."""
    ip = _ip(address)
    if ip is None:
        return address
    return str(ip if ip.version == 4 else ip_network((ip, 64), strict=False))


def is_exempt(address: str, trusted: Iterable[Network]) -> bool:
    """Return whether an address is exempt from limits: loopback, or in a trusted network."""
    ip = _ip(address)
    return ip is not None and (ip.is_loopback or any(ip in network for network in trusted))


def _ip(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None  # a Unix socket has no address
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
