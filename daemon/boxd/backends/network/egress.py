"""Parses egress policies: the network addresses that a box may reach. Pure functions.

A policy is the word `all`, the word `none`, or a list of entries separated by commas::

    pypi.org                the addresses of a name, as the box's resolver returns them
    *.example.org           of every name below example.org (not of example.org itself)
    198.51.100.0/24         addresses
    pypi.org:443            TCP and UDP to one port only; also works after addresses

No policy lets a box reach DENIED, the host or another box: the fence rejects these before it looks
at any policy. Boxes have no IPv6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses, ip_network
from typing import TYPE_CHECKING

from boxd.errors import BadRequest
from boxd.names.words import fold, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL = "all"
NONE = "none"
MAX_ENTRIES = 64
MAX_NAME = 253
DENIED = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "224.0.0.0/3",
    )
)
"""Private, shared, link-local (with metadata services), multicast, reserved and broadcast
ranges."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_WILDCARD = "*."
_LAST_PORT = 65535
_SUFFIX_LABELS = 2
"""Minimum of labels after a wildcard: `*.com` would allow nearly everything."""


@dataclass(frozen=True, slots=True)
class NameEntry:
    """A name, or with the prefix `*.` all names below it. Port None means every port."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"

    def matches(self, name: str) -> bool:
        """Return whether the entry covers a name (lower case, no final dot)."""
        if self.name.startswith(_WILDCARD):
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return name == self.name


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """A range of addresses. Port None means every port and protocol."""

    network: IPv4Network
    port: int | None = None

    def __str__(self) -> str:
        text = str(self.network).removesuffix("/32")
        return text if self.port is None else f"{text}:{self.port}"


@dataclass(frozen=True, slots=True)
class Egress:
    """A policy. `word` is `all`, `none` or empty; `names` and `ranges` are a list's entries."""

    word: str
    names: tuple[NameEntry, ...] = ()
    ranges: tuple[RangeEntry, ...] = ()

    def __str__(self) -> str:
        """Return the canonical text, which is stored, shown and compared."""
        return self.word or ",".join(map(str, (*self.names, *self.ranges)))

    @property
    def is_list(self) -> bool:
        """Whether the policy is neither `all` nor `none`."""
        return not self.word

    def ports_of(self, name: str) -> frozenset[int | None]:
        """Return the ports on which a name (lower case, no final dot) may be reached.

        None as an element means every port. An empty set means that the name is not allowed.
        """
        ports = frozenset(entry.port for entry in self.names if entry.matches(name))
        return frozenset({None}) if None in ports else ports

    def networks(self, port: int | None) -> list[IPv4Network]:
        """Return the ranges of the entries with this port, merged so that none overlap."""
        return list(collapse_addresses(e.network for e in self.ranges if e.port == port))

    def range_ports(self) -> list[int]:
        """Return the ports that ranges name."""
        return sorted({entry.port for entry in self.ranges if entry.port is not None})


def parse_egress(text: str) -> Egress:
    """Parse a policy. BadRequest names the invalid entry and the problem."""
    if text in (ALL, NONE):
        return Egress(text)
    entries = [fold(entry.strip()) for entry in text.split(",")]
    if len(entries) > MAX_ENTRIES:
        raise BadRequest(f"an egress list has at most {MAX_ENTRIES} entries, not {len(entries)}")
    parsed = [_entry(entry) for entry in entries]
    names = {entry for entry in parsed if isinstance(entry, NameEntry)}
    ranges = {entry for entry in parsed if isinstance(entry, RangeEntry)}
    return Egress("", tuple(_ordered_names(names)), tuple(_ordered_ranges(ranges)))


def is_denied(address: IPv4Address) -> bool:
    """Return whether no box may reach an address, regardless of its policy."""
    return any(address in network for network in DENIED)


def reachable(addresses: Iterable[IPv4Address]) -> list[IPv4Address]:
    """Return addresses without duplicates and without denied ones, in order."""
    return [address for address in dict.fromkeys(addresses) if not is_denied(address)]


def _ordered_names(entries: set[NameEntry]) -> list[NameEntry]:
    """Sort entries, and drop those with a port if the same name is allowed on every port."""
    needed = [e for e in entries if e.port is None or NameEntry(e.name) not in entries]
    return sorted(needed, key=lambda e: (e.name, e.port or 0))


def _ordered_ranges(entries: set[RangeEntry]) -> list[RangeEntry]:
    needed = [e for e in entries if e.port is None or RangeEntry(e.network) not in entries]
    return sorted(needed, key=lambda e: (e.network, e.port or 0))


def _entry(entry: str) -> NameEntry | RangeEntry:
    if entry in (ALL, NONE):
        raise BadRequest(f"egress {entry} must be the whole policy, not an entry of a list")
    if entry.count(":") > 1 or "[" in entry:
        raise BadRequest(f"egress entry {shown(entry)}: boxes have no IPv6; give IPv4 or a name")
    target, colon, port_text = entry.partition(":")
    port = _port(entry, port_text) if colon else None
    if not target:
        raise BadRequest("an egress list has an empty entry; write: all, none, or name,address,...")
    if _looks_like_address(target):
        return RangeEntry(_network(entry, target), port)
    return NameEntry(_name(entry, target), port)


def _port(entry: str, text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > _LAST_PORT:
        raise BadRequest(f"egress entry {shown(entry)}: a port is a number from 1 to {_LAST_PORT}")
    return int(text)


def _looks_like_address(target: str) -> bool:
    """Return whether a target is an address: the last label of a name is never a number."""
    return "/" in target or bool(_NUMBER.fullmatch(target.rstrip(".").rpartition(".")[2]))


def _network(entry: str, target: str) -> IPv4Network:
    try:
        network = ip_network(target, strict=False)
    except ValueError:
        network = None
    if not isinstance(network, IPv4Network):
        raise BadRequest(
            f"egress entry {shown(entry)}: not an IPv4 address or network like 198.51.100.0/24"
        )
    if "/" in target and str(network.network_address) != target.partition("/")[0]:
        raise BadRequest(
            f"egress entry {shown(entry)}: the network with this address is {network}; write that"
        )
    if any(map(network.subnet_of, DENIED)):
        raise BadRequest(
            f"egress entry {shown(entry)}: boxes cannot reach private, link-local and reserved "
            "addresses"
        )
    return network


def _name(entry: str, target: str) -> str:
    wildcard = target.startswith(_WILDCARD)
    name = target.removesuffix(".")
    labels = name.removeprefix(_WILDCARD).split(".") if wildcard else name.split(".")
    if not all(map(_LABEL.fullmatch, labels)) or len(name) > MAX_NAME:
        raise BadRequest(
            f"egress entry {shown(entry)}: not a name like pypi.org or *.example.org"
            f"{_ascii_hint(target)}"
        )
    if len(labels) < _SUFFIX_LABELS:
        raise BadRequest(f"egress entry {shown(entry)}: a name needs a domain, like pypi.org")
    return name


def _ascii_hint(target: str) -> str:
    return "" if target.isascii() else "; write letters beyond ASCII in their xn-- form"
