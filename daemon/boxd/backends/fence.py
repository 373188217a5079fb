"""The fence around the boxes' network, as nftables rules. Pure.

One table per installation, loaded before there is any box. Its chains match the name that all
links of boxes start with, and drop what is not allowed by name, so a box without an entry reaches
nothing: there is no moment in which a box is up and its fence is not. Entries are `known` (link and
address belong together; anything else is a spoofed source), `open` (egress `all`), and for egress
by a list `listed` and `lists`, which leads to a chain of the box's own.

What an open box reaches: any IPv4 address that is not this host's, not another box's, and not in
DENIED; and DNS, at addresses that exist for this purpose only and lead to the host's resolvers,
wherever those are. With a list it reaches of these what the list names, and DNS leads to the
daemon's resolver, which puts the addresses of listed names into the box's sets before it tells
them. Nothing reaches a box: neither other machines nor the host itself.

What the fence lets pass it marks; without the mark nothing passes at all (see `seal`), so a table
that another program has removed or emptied closes the boxes instead of opening them.

What one box uses of what all share is bounded: connections that it begins in a second and has at
once, questions to resolvers, and refusals that it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import cycle
from typing import TYPE_CHECKING

from boxd.backends.egress import ALL, DENIED
from boxd.backends.seal import MARK

if TYPE_CHECKING:
    from boxd.backends.egress import Egress

DNS_ADDRESSES = (IPv4Address("192.0.0.53"), IPv4Address("192.0.0.54"), IPv4Address("192.0.0.55"))
"""The boxes' resolvers: in a block that no network uses, the same in every box and for ever, so
that a changed resolver or network of the host changes nothing inside."""
REJECTS_PER_S = 100
"""Refusals a second that are told to one box; beyond it packets are dropped silently."""
NEW_PER_S = 200
"""Connections that one box begins in a second, after a burst of twice as many."""
QUESTIONS_PER_S = 200
"""Packets with questions to resolvers from one box, after a burst of twice as many."""
MIN_CONNECTIONS, MAX_CONNECTIONS = 256, 4096
"""Bounds of the connections that one box has at once."""
CONNECTIONS_SHARE = 100
"""One box takes at most one part in this many of the connections that the host can follow."""
RESOLVER_PORT = 10053
"""Of the daemon's resolver, at an address of the boxes' network that is its alone."""
MAX_ADDRESSES = 512
"""Addresses of names that one box may have at once."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What the table depends on.

    `links` is what the names of this installation's box links start with, `family` what those of
    every installation start with. `guarded` are uplinks that forward only because of us: they must
    not become routers for others. `own_resolver` is where boxes with a list ask for names,
    `connections` what one box may have at once.
    """

    table: str
    links: str
    family: str
    subnet: IPv4Network
    resolvers: tuple[IPv4Address, ...]
    guarded: tuple[str, ...]
    own_resolver: IPv4Address
    connections: int


SAMPLE = Fence(
    table="boxd_try",
    links="bxtry-",
    family="bx",
    subnet=IPv4Network("10.0.0.0/16"),
    resolvers=(IPv4Address("192.0.2.53"),),
    guarded=("try0",),
    own_resolver=IPv4Address("10.0.255.254"),
    connections=MIN_CONNECTIONS,
)
"""Of no installation: to ask the kernel whether it takes such rules."""


def connections(conntrack_max: int) -> int:
    """What one box may have, when the host can follow `conntrack_max` (0: unknown)."""
    return min(max(conntrack_max // CONNECTIONS_SHARE, MIN_CONNECTIONS), MAX_CONNECTIONS)


def ruleset(fence: Fence) -> str:
    """The table; loading it again renews rules and resolvers and keeps the boxes' entries."""
    table = f"inet {fence.table}"
    counted = "{ typeof iifname; flags dynamic,timeout; timeout 1m; size 65536; }"
    lines = [
        f"add table {table}",
        f"add set {table} known {{ typeof iifname . ip saddr; }}",
        f"add set {table} open {{ typeof iifname; }}",
        f"add set {table} listed {{ typeof iifname; }}",
        f"add map {table} lists {{ typeof iifname : verdict; }}",
        *(f"add set {table} {name} {counted}" for name in ("refusals", "beginnings", "questions")),
        f"add set {table} connections {{ typeof iifname; flags dynamic; size 65536; }}",
        f"add map {table} resolvers {{ type ipv4_addr : ipv4_addr; }}",
        f"add set {table} denied {{ type ipv4_addr; flags interval; }}",
        f"flush map {table} resolvers",
        f"flush set {table} denied",
        f"add element {table} denied {{ {', '.join(map(str, DENIED))} }}",
    ]
    if fence.resolvers:
        pairs = zip(DNS_ADDRESSES, cycle(fence.resolvers), strict=False)
        elements = ", ".join(f"{inner} : {outer}" for inner, outer in pairs)
        lines.append(f"add element {table} resolvers {{ {elements} }}")
    chains = _chains(fence)
    for chain in chains:
        hook = f" {{ type {_HOOKS[chain]}; policy accept; }}" if chain in _HOOKS else ""
        lines += [f"add chain {table} {chain}{hook}", f"flush chain {table} {chain}"]
    for chain, rules in chains.items():
        lines += [f"add rule {table} {chain} {rule}" for rule in rules]
    return "\n".join(lines) + "\n"


def outline(listing: str, links: str) -> str:
    """What `nft --terse list table` shows of chains and sets, without those of single boxes."""
    kept, own = [], False
    for line in listing.splitlines():
        words = line.split()
        if line.startswith("\t") and not line.startswith("\t\t") and line.endswith("{"):
            own = words[1].strip('"').startswith(links)
        if not own and line:
            kept.append(line)
        own = own and line != "\t}"
    return "\n".join(kept)


def remove(table: str) -> str:
    """Removes the table, also when it is not there."""
    return f"add table inet {table}\ndelete table inet {table}\n"


def admit(table: str, link: str, box: IPv4Address, egress: Egress) -> str:
    """The entries of one box. What a list allowed by name before stays until its time is over."""
    text = f'add element inet {table} known {{ "{link}" . {box} }}\n'
    opened = f'add element inet {table} open {{ "{link}" }}\n'
    if egress.word == ALL:
        return text + opened
    text += opened + f'delete element inet {table} open {{ "{link}" }}\n'
    return text + _own_chain(table, link, egress) if egress.is_list else text


def allow(
    table: str, link: str, addresses: list[IPv4Address], port: int | None, seconds: int
) -> str:
    """Lets a box with a list reach addresses for so many seconds from now, longer or shorter than
    it might before."""
    kind, after = ("names", "") if port is None else ("ports", f" . {port}")
    name = f"element inet {table} {link}-{kind}"
    return "".join(
        f"add {name} {{ {address}{after} }}\n"
        f"delete {name} {{ {address}{after} }}\n"
        f"add {name} {{ {address}{after} timeout {seconds}s }}\n"
        for address in addresses
    )


def expel(table: str, link: str, box: IPv4Address) -> str:
    """Takes the entries of one box away, also when they are not there."""
    known = f'element inet {table} known {{ "{link}" . {box} }}\n'
    entries = [f'element inet {table} {name} {{ "{link}" }}\n' for name in ("open", "listed")]
    text = f"add {known}delete {known}"
    text += "".join(f"add {entry}delete {entry}" for entry in entries)
    text += f"add chain inet {table} {link}\n"
    text += f'add element inet {table} lists {{ "{link}" : goto {link} }}\n'
    text += f'delete element inet {table} lists {{ "{link}" }}\n'
    text += f"flush chain inet {table} {link}\ndelete chain inet {table} {link}\n"
    for kind, elements in _OWN_SETS.items():
        text += f"add set inet {table} {link}-{kind} {elements}\n"
        text += f"delete set inet {table} {link}-{kind}\n"
    return text


_HOOKS = {
    "enter": "filter hook prerouting priority raw",
    "come_back": "filter hook prerouting priority mangle",
    "answer": "filter hook output priority mangle",
    "resolve": "nat hook prerouting priority dstnat",
    "local": "filter hook input priority filter",
    "speak": "filter hook output priority filter",
    "through": "filter hook forward priority filter",
    "disguise": "nat hook postrouting priority srcnat",
    "nearby": "nat hook input priority 100",
}
_OWN_SETS = {
    "names": f"{{ type ipv4_addr; flags timeout; size {MAX_ADDRESSES}; }}",
    "ports": f"{{ type ipv4_addr . inet_service; flags timeout; size {MAX_ADDRESSES}; }}",
}
"""Of a box with a list, which the resolver fills: addresses; addresses with one port each."""
_WITH_PORTS = "meta l4proto { tcp, udp }"


def _chains(fence: Fence) -> dict[str, list[str]]:
    """The rules by chain. Those without a hook are called by the others, and stand first."""
    box = f'iifname "{fence.links}*"'
    to_box = f'oifname "{fence.links}*"'
    inner = ", ".join(map(str, DNS_ADDRESSES))
    asked_us = f"ct status dnat ct original ip daddr {{ {inner} }}"
    mark = f"meta mark set meta mark or {MARK:#x}"
    reply = f"ct direction reply ct original ip saddr {fence.subnet} {mark}"
    return {
        **_called(fence, asked_us),
        "enter": [
            f"{box} meta nfproto != ipv4 drop",
            f"{box} iifname . ip saddr != @known drop",
            f"{box} ip daddr 127.0.0.0/8 drop",
            f"{box} ip option lsrr exists drop",
            f"{box} ip option ssrr exists drop",
            f"{box} ip daddr {{ {inner} }} "
            + _beyond("questions", f"limit rate over {QUESTIONS_PER_S}/second", QUESTIONS_PER_S),
            f"{box} {mark}",
        ],
        "come_back": [reply],
        "answer": [reply],
        "resolve": [
            f"{box} iifname @open {_WITH_PORTS} th dport 53 dnat ip to ip daddr map @resolvers",
            f"{box} iifname @listed ip daddr {{ {inner} }} {_WITH_PORTS} th dport 53 "
            f"dnat ip to {fence.own_resolver}:{RESOLVER_PORT}",
        ],
        "local": [
            f"{box} ct state established,related accept",
            f"{box} {asked_us} goto admitted",
            *_refuse(box),
        ],
        "speak": [
            f"{to_box} ct state established,related accept",
            f"{to_box} drop",
        ],
        "through": [
            *(f'iifname "{up}" oifname != "{fence.family}*" drop' for up in fence.guarded),
            f"{to_box} ct state established,related accept",
            f"{to_box} drop",
            f"{box} iifname @open goto anywhere",
            f"{box} iifname vmap @lists",
            *_refuse(box),
        ],
        "disguise": [f'ip saddr {fence.subnet} oifname != "{fence.links}*" masquerade'],
        "nearby": [
            # The host's own resolver answers to an address of the host: only what the kernel
            # turns back into an answer to the box has the mark.
            f"{box} {asked_us} ip daddr != {fence.own_resolver} snat ip to 127.0.0.1",
        ],
    }


def _called(fence: Fence, asked_us: str) -> dict[str, list[str]]:
    """The rules of chains without a hook."""
    return {
        "admitted": [
            _beyond("beginnings", f"limit rate over {NEW_PER_S}/second", NEW_PER_S),
            f"add @connections {{ iifname ct count over {fence.connections} }} drop",
            "accept",
        ],
        "allowed": [
            "ct state established,related accept",
            f"{asked_us} goto admitted",
            *_refuse("ip daddr @denied"),
        ],
        "anywhere": ["jump allowed", "goto admitted"],
    }


def _own_chain(table: str, link: str, egress: Egress) -> str:
    """Chain and sets of a box with a list; what is in the sets already stays."""
    matches = [f"ip daddr @{link}-names", f"{_WITH_PORTS} ip daddr . th dport @{link}-ports"]
    for port in (None, *egress.range_ports()):
        networks = ", ".join(map(str, egress.networks(port)))
        if networks:
            at_port = "" if port is None else f" {_WITH_PORTS} th dport {port}"
            matches.append(f"ip daddr {{ {networks} }}{at_port}")
    rules = ["jump allowed", *(f"{match} goto admitted" for match in matches), *_refuse("")]
    lines = [f"add set inet {table} {link}-{kind} {what}" for kind, what in _OWN_SETS.items()]
    lines += [f"add chain inet {table} {link}", f"flush chain inet {table} {link}"]
    lines += [f"add rule inet {table} {link} {rule}" for rule in rules]
    lines.append(f'add element inet {table} lists {{ "{link}" : goto {link} }}')
    lines.append(f'add element inet {table} listed {{ "{link}" }}')
    return "\n".join(lines) + "\n"


def _refuse(match: str) -> list[str]:
    """Tells the sender, so that programs fail at once; in silence when it is too much."""
    within = f"update @refusals {{ iifname limit rate {REJECTS_PER_S}/second }}"
    told = f"{within} reject with icmpx type admin-prohibited"
    return [f"{match} {told}".lstrip(), f"{match} drop".lstrip()]


def _beyond(counter: str, limit: str, burst: int) -> str:
    """Drops what of one box is too much."""
    return f"update @{counter} {{ iifname {limit} burst {2 * burst} packets }} drop"
