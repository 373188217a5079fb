"""The fence around the boxes' network, as nftables rules. Pure.

One table per installation, loaded before there is any box. Its chains match the name that all
links of boxes start with, and drop what is not allowed by name, so a box without an entry reaches
nothing: there is no moment in which a box is up and its fence is not. Entries are `known` (link and
address belong together; anything else is a spoofed source) and `open` (egress `all`).

What an open box reaches: any IPv4 address that is not this host's, not another box's, and not in
DENIED; and DNS, at addresses that exist for this purpose only and lead to the host's resolvers,
wherever those are. Nothing reaches a box: neither other machines nor the host itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import cycle

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
DNS_ADDRESSES = (IPv4Address("192.0.0.53"), IPv4Address("192.0.0.54"), IPv4Address("192.0.0.55"))
"""The boxes' resolvers: in a block that no network uses, the same in every box and for ever, so
that a changed resolver or network of the host changes nothing inside."""
REJECTS_PER_S = 100
"""Refusals a second that are told to the boxes; beyond it packets are dropped silently."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What the table depends on.

    `links` is what the names of this installation's box links start with, `family` what those of
    every installation start with. `guarded` are uplinks that forward only because of us: they must
    not become routers for others.
    """

    table: str
    links: str
    family: str
    subnet: IPv4Network
    resolvers: tuple[IPv4Address, ...]
    guarded: tuple[str, ...]


def ruleset(fence: Fence) -> str:
    """The table; loading it again renews rules and resolvers and keeps the boxes' entries."""
    table = f"inet {fence.table}"
    lines = [
        f"add table {table}",
        f"add set {table} known {{ typeof iifname . ip saddr; }}",
        f"add set {table} open {{ typeof iifname; }}",
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
    for chain, hook in _CHAINS.items():
        lines.append(f"add chain {table} {chain} {{ type {hook}; policy accept; }}")
        lines.append(f"flush chain {table} {chain}")
        lines += [f"add rule {table} {chain} {rule}" for rule in _rules(chain, fence)]
    return "\n".join(lines) + "\n"


def remove(table: str) -> str:
    """Removes the table, also when it is not there."""
    return f"add table inet {table}\ndelete table inet {table}\n"


def admit(table: str, link: str, box: IPv4Address, *, open_: bool) -> str:
    """The entries of one box; `open_` False lets nothing out (egress `none`)."""
    text = f'add element inet {table} known {{ "{link}" . {box} }}\n'
    opened = f'add element inet {table} open {{ "{link}" }}\n'
    if not open_:
        opened += f'delete element inet {table} open {{ "{link}" }}\n'
    return text + opened


def expel(table: str, link: str, box: IPv4Address) -> str:
    """Takes the entries of one box away, also when they are not there."""
    known = f'element inet {table} known {{ "{link}" . {box} }}\n'
    opened = f'element inet {table} open {{ "{link}" }}\n'
    return f"add {known}delete {known}add {opened}delete {opened}"


_CHAINS = {
    "enter": "filter hook prerouting priority raw",
    "resolve": "nat hook prerouting priority dstnat",
    "local": "filter hook input priority filter",
    "speak": "filter hook output priority filter",
    "through": "filter hook forward priority filter",
    "disguise": "nat hook postrouting priority srcnat",
    "nearby": "nat hook input priority 100",
}


def _rules(chain: str, fence: Fence) -> list[str]:
    box = f'iifname "{fence.links}*"'
    to_box = f'oifname "{fence.links}*"'
    asked_us = f"ct status dnat ct original ip daddr {{ {', '.join(map(str, DNS_ADDRESSES))} }}"
    rules = {
        "enter": [
            f"{box} meta nfproto != ipv4 drop",
            f"{box} iifname . ip saddr != @known drop",
            f"{box} ip daddr 127.0.0.0/8 drop",
            f"{box} ip option lsrr exists drop",
            f"{box} ip option ssrr exists drop",
        ],
        "resolve": [
            f"{box} iifname @open meta l4proto {{ tcp, udp }} th dport 53 "
            "dnat ip to ip daddr map @resolvers",
        ],
        "local": [
            f"{box} ct state established,related accept",
            f"{box} {asked_us} accept",
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
            *_refuse(f"{box} iifname != @open"),
            f"{box} ct state established,related accept",
            f"{box} {asked_us} accept",
            *_refuse(f"{box} ip daddr @denied"),
            f"{box} accept",
        ],
        "disguise": [f'ip saddr {fence.subnet} oifname != "{fence.links}*" masquerade'],
        "nearby": [f"{box} ip daddr 127.0.0.0/8 snat ip to 127.0.0.1"],
    }
    return rules[chain]


def _refuse(match: str) -> list[str]:
    """Tells the sender, so that programs fail at once; in silence when it is too much."""
    told = f"limit rate {REJECTS_PER_S}/second reject with icmpx type admin-prohibited"
    return [f"{match} {told}", f"{match} drop"]
