"""What the host's network configuration says: the ways out, and the name servers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from boxd.backends.egress import DENIED
from boxd.backends.hostnames import LINK_FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Route:
    """One line of the host's main routing table."""

    device: str
    network: IPv4Network
    gateway: IPv4Address | None


def parse_routes(text: str) -> list[Route]:
    """Reads the text of /proc/net/route (addresses are little-endian hex)."""
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
    """Devices through which boxes go out: those that lead to any address that the fence does not
    deny, and the way to each resolver."""
    usable = [r for r in routes if not r.device.startswith((LINK_FAMILY, "lo")) and r.device != "*"]
    found = {r.device for r in usable if not any(map(r.network.subnet_of, DENIED))}
    for resolver in resolvers:
        matching = [r for r in usable if resolver in r.network]
        if matching:
            found.add(max(matching, key=lambda r: r.network.prefixlen).device)
    return tuple(sorted(found))


def parse_resolvers(text: str) -> list[IPv4Address]:
    """The IPv4 name servers of a resolv.conf. IPv6 ones are out of a box's reach."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            found.append(IPv4Address(words[1]))
        except ValueError:
            continue
    return found
