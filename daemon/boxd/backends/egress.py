"""What a box may reach of the network, as its owner writes it. Pure.

A policy is the word `all`, the word `none`, or a list of entries between commas::

    pypi.org                the addresses of a name, as the box's resolver tells them
    *.example.org           of every name below example.org (not of example.org itself)
    198.51.100.0/24         addresses
    pypi.org:443            TCP and UDP to one port only; works after addresses as well

Whatever a policy says, no box reaches DENIED, the host or another box: the fence refuses these
before it looks at any policy. Boxes have no IPv6.
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
"""Private, shared, link-local (with metadata services), multicast, reserved, broadcast."""

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_WILDCARD = "*."
_LAST_PORT = 65535
_SUFFIX_LABELS = 2
"""Labels that must follow a wildcard: `*.com` would be nearly everything."""


@dataclass(frozen=True, slots=True)
class NameEntry:
    """A name, or with `*.` before it all names below; `port` None means every port."""

    name: str
    port: int | None = None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"

    def matches(self, name: str) -> bool:
        """Whether a name in lower case without a dot at its end is meant."""
        if self.name.startswith(_WILDCARD):
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return name == self.name


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """Addresses; `port` None means every port and protocol."""

    network: IPv4Network
    port: int | None = None

    def __str__(self) -> str:
        text = str(self.network).removesuffix("/32")
        return text if self.port is None else f"{text}:{self.port}"


@dataclass(frozen=True, slots=True)
class Egress:
    """A policy. `names` and `ranges` are what a list allows; `word` is `all`, `none` or empty."""

    word: str
    names: tuple[NameEntry, ...] = ()
    ranges: tuple[RangeEntry, ...] = ()

    def __str__(self) -> str:
        """The canonical text: what is stored, shown and compared."""
        return self.word or ",".join(map(str, (*self.names, *self.ranges)))

    @property
    def is_list(self) -> bool:
        """Whether it is neither `all` nor `none`."""
        return not self.word

    def ports_of(self, name: str) -> frozenset[int | None]:
        """Ports on which a name (lower case, no dot at its end) may be reached.

        None in it means every port; empty: the name is not allowed.
        """
        ports = frozenset(entry.port for entry in self.names if entry.matches(name))
        return frozenset({None}) if None in ports else ports

    def networks(self, port: int | None) -> list[IPv4Network]:
        """Ranges of the entries with this port, none of which overlaps another one."""
        return list(collapse_addresses(one.network for one in self.ranges if one.port == port))

    def range_ports(self) -> list[int]:
        """The single ports that ranges name."""
        return sorted({entry.port for entry in self.ranges if entry.port is not None})


def parse_egress(text: str) -> Egress:
    """Reads a policy; BadRequest says what is wrong with which entry."""
    if text in (ALL, NONE):
        return Egress(text)
    entries = [fold(entry.strip()) for entry in text.split(",")]
    if len(entries) > MAX_ENTRIES:
        raise BadRequest(f"an egress list has at most {MAX_ENTRIES} entries, not {len(entries)}")
    parsed = [_entry(entry) for entry in entries]
    names = {one for one in parsed if isinstance(one, NameEntry)}
    ranges = {one for one in parsed if isinstance(one, RangeEntry)}
    return Egress("", tuple(_ordered_names(names)), tuple(_ordered_ranges(ranges)))


def is_denied(address: IPv4Address) -> bool:
    """Whether no box reaches an address, whatever its policy is."""
    return any(address in network for network in DENIED)


def reachable(addresses: Iterable[IPv4Address]) -> list[IPv4Address]:
    """Addresses once each, in their order, without those that no box reaches."""
    return [one for one in dict.fromkeys(addresses) if not is_denied(one)]


def _ordered_names(entries: set[NameEntry]) -> list[NameEntry]:
    """Sorted; an entry with a port says nothing beside the same one without."""
    needed = [e for e in entries if e.port is None or NameEntry(e.name) not in entries]
    return sorted(needed, key=lambda e: (e.name, e.port or 0))


def _ordered_ranges(entries: set[RangeEntry]) -> list[RangeEntry]:
    needed = [e for e in entries if e.port is None or RangeEntry(e.network) not in entries]
    return sorted(needed, key=lambda e: (e.network, e.port or 0))


def _entry(entry: str) -> NameEntry | RangeEntry:
    if entry in (ALL, NONE):
        raise BadRequest(f"egress {entry} stands alone, not in a list")
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
    """A last label of digits (also hexadecimal ones) is never a name's."""
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
            f"egress entry {shown(entry)}: private, link-local and reserved addresses are never "
            "reached from a box"
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
