"""Chooses addresses: one free /16 per installation, and one /30 of it per box. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

from boxd.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = 30
SLOTS = (1 << 14) - 1
"""Maximum number of boxes per installation. The resolver uses the remaining subnet of the /16."""
_CANDIDATES = [IPv4Network((0x0A000000 + (second << 16), 16)) for second in range(256)] + [
    IPv4Network((0xAC100000 + (second << 16), 16)) for second in range(16)
]


@dataclass(frozen=True, slots=True)
class BoxAddress:
    """The addresses of both ends of a box's link."""

    gateway: IPv4Address
    box: IPv4Address


def choose(instance: str, taken: Iterable[IPv4Network]) -> IPv4Network:
    """Return a private /16 that overlaps nothing in `taken`.

    The search starts at a position that depends on the installation, so that installations on one
    host rarely try the same network. Raises Unavailable if every candidate is taken.
    """
    used = list(taken)
    start = int(instance, 16) % len(_CANDIDATES)
    for candidate in _CANDIDATES[start:] + _CANDIDATES[:start]:
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise Unavailable("no private /16 network is free for boxes; remove a route to 10.0.0.0/8")


def address(network: IPv4Network, slot: int) -> BoxAddress:
    """Return the addresses of a slot (0 <= slot < SLOTS)."""
    base = network.network_address + slot * 4
    return BoxAddress(gateway=base + 1, box=base + 2)


def resolver(network: IPv4Network) -> IPv4Address:
    """Return the address of the daemon's own resolver."""
    return network.broadcast_address - 1


def free_slot(used: set[int]) -> int:
    """Return the lowest free slot. Raises Unavailable if there is none."""
    for slot in range(SLOTS):
        if slot not in used:
            return slot
    raise Unavailable(f"this host already has {SLOTS} boxes, the limit; remove some")
