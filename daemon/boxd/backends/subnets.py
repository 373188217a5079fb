"""Choice of addresses: one free /16 per installation, one /30 of it per box. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = 30
SLOTS = (1 << 14) - 1
"""Boxes that one installation can address; what is left of its /16 is the resolver's."""
_CANDIDATES = [IPv4Network((0x0A000000 + (second << 16), 16)) for second in range(256)] + [
    IPv4Network((0xAC100000 + (second << 16), 16)) for second in range(16)
]


@dataclass(frozen=True, slots=True)
class BoxAddress:
    """Both ends of a box's link."""

    gateway: IPv4Address
    box: IPv4Address


def choose(instance: str, taken: Iterable[IPv4Network]) -> IPv4Network:
    """A private /16 that overlaps nothing in `taken`.

    The search starts at a place that depends on the installation, so that several on one host
    seldom want the same one. Raises Unavailable when every candidate is taken.
    """
    used = list(taken)
    start = int(instance, 16) % len(_CANDIDATES)
    for candidate in _CANDIDATES[start:] + _CANDIDATES[:start]:
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise Unavailable("no private /16 network is free for boxes; remove a route to 10.0.0.0/8")


def address(network: IPv4Network, slot: int) -> BoxAddress:
    """The addresses of slot `slot` (0 <= slot < SLOTS)."""
    base = network.network_address + slot * 4
    return BoxAddress(gateway=base + 1, box=base + 2)


def resolver(network: IPv4Network) -> IPv4Address:
    """The address of the daemon's own resolver."""
    return network.broadcast_address - 1


def free_slot(used: set[int]) -> int:
    """The lowest slot that is not in use. Raises Unavailable when there is none."""
    for slot in range(SLOTS):
        if slot not in used:
            return slot
    raise Unavailable(f"this host holds {SLOTS} boxes already; remove some")
