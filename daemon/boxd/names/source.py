"""Where clients come from, and what of that counts as one source. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Network = IPv4Network | IPv6Network


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, or the /64 of an IPv6 address."""
    ip = _ip(address)
    if ip is None:
        return address
    return str(ip if ip.version == 4 else ip_network((ip, 64), strict=False))


def is_exempt(address: str, trusted: Iterable[Network]) -> bool:
    """Whether the address knows no bound of its own: loopback, or one of the operator's."""
    ip = _ip(address)
    return ip is not None and (ip.is_loopback or any(ip in network for network in trusted))


def _ip(address: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None  # a Unix socket has none
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
