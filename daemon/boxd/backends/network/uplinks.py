"""Parses the host's network configuration: its uplinks and its name servers. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from boxd.backends.host.names import LINK_FAMILY
from boxd.backends.network.egress import DENIED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the host's main routing table."""

    device: str
    network: IPv4Network
    gateway: IPv4Address | None


def parse_routes(text: str) -> list[Route]:
    """Parse the text of /proc/net/route, whose addresses are little-endian hexadecimal."""
    routes = []
    for line in text.splitlines()[1:]:
        device, destination, gateway, *_, mask, _mtu, _window, _irtt = line.split()
        prefix = int(mask, 16).bit_count()
        via = _address(gateway)
        routes.append(
            Route(
                device,
                IPv4Network((_address(destination), prefix), strict=False),
                None if int(via) == 0 else via,
            )
        )
    return routes


def _address(little_endian: str) -> IPv4Address:
    return IPv4Address(int.from_bytes(bytes.fromhex(little_endian), "little"))


def uplinks(routes: Iterable[Route], resolvers: Sequence[IPv4Address]) -> tuple[str, ...]:
    """Return the devices by which packets of boxes leave the host.

    These are the devices with routes to any address that the fence does not deny, and with the
    route to each resolver.
    """
    usable = [r for r in routes if not r.device.startswith((LINK_FAMILY, "lo")) and r.device != "*"]
    devices = {r.device for r in usable if not any(map(r.network.subnet_of, DENIED))}
    for resolver in resolvers:
        matching = [r for r in usable if resolver in r.network]
        if matching:
            devices.add(max(matching, key=lambda r: r.network.prefixlen).device)
    return tuple(sorted(devices))


def parse_resolvers(text: str) -> list[IPv4Address]:
    """Return the IPv4 name servers of a resolv.conf. Boxes cannot reach IPv6 ones."""
    resolvers = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            resolvers.append(IPv4Address(words[1]))
        except ValueError:
            continue
    return resolvers
