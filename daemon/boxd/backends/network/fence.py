"""Builds the fence around the boxes' network as nftables rules. Pure functions.

Each installation has one table, loaded before its first box. The chains match the name prefix of
all box links and drop everything that is not explicitly allowed. A box without an entry reaches
nothing, so a box is never up without its fence. The entry `known` has the link and address of a
box; any other source is spoofed. The entry `open` is for egress `all`. The entries `listed` and
`lists` are for an egress list; `lists` leads to the box's own chain.

An open box reaches any IPv4 address except those of this host, of other boxes, and in DENIED. The
box also reaches DNS, at addresses that exist only for DNS and lead to the host's resolvers. A box
with a list reaches only the addresses among these that the list names. Its DNS leads to the
daemon's resolver, which adds the addresses of listed names to the box's sets before it answers.
Nothing reaches a box: neither other machines nor the host itself.

The fence marks the packets that it allows. Without the mark no packet passes at all (`lockdown`).
So if another program removes or empties the table, boxes are closed and not open.

The use of shared resources is limited for each box: new connections per second, concurrent
connections, DNS queries, and rejections that are reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import cycle
from typing import TYPE_CHECKING

from boxd.backends.network.egress import ALL, DENIED
from boxd.backends.network.lockdown import MARK

if TYPE_CHECKING:
    from boxd.backends.network.egress import Egress

DNS_ADDRESSES = (IPv4Address("192.0.0.53"), IPv4Address("192.0.0.54"), IPv4Address("192.0.0.55"))
"""Addresses of the boxes' resolvers. They are in a block that no network uses, and never change. So
a change of the host's resolver or network changes nothing inside a box."""
REJECTS_PER_S = 100
"""Rejections per second that are reported to one box. Packets beyond that are dropped silently."""
NEW_PER_S = 200
"""New connections of one box per second, after a burst of twice as many."""
QUESTIONS_PER_S = 200
"""DNS packets of one box per second, after a burst of twice as many."""
MIN_CONNECTIONS, MAX_CONNECTIONS = 256, 4096
"""Lower and upper bound of the concurrent connections of one box."""
CONNECTIONS_SHARE = 100
"""One box may have at most 1/CONNECTIONS_SHARE of the connections that the host can track."""
RESOLVER_PORT = 10053
"""Port of the daemon's resolver, at an address of the boxes' network reserved for it."""
MAX_ADDRESSES = 512
"""Maximum number of addresses per box that lookups of names have opened."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The parameters of the table.

    `links` is the name prefix of this installation's box links, `family` that of every
    installation. `guarded` are uplinks that forward only because of boxes; they must not route for
    others. `own_resolver` is the DNS server of boxes with a list. `connections` is the limit of
    concurrent connections per box.
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
"""A table of no installation, to test whether the kernel accepts such rules."""


def connections(conntrack_max: int) -> int:
    """Return the limit of connections per box; the host tracks `conntrack_max` (0: unknown)."""
    return min(max(conntrack_max // CONNECTIONS_SHARE, MIN_CONNECTIONS), MAX_CONNECTIONS)


def ruleset(fence: Fence) -> str:
    """Return the table. Loading it again renews rules and resolvers, and keeps boxes' entries."""
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
    """Return the chains and sets in an `nft --terse list table`, without those of single boxes."""
    lines, own = [], False
    for line in listing.splitlines():
        words = line.split()
        if line.startswith("\t") and not line.startswith("\t\t") and line.endswith("{"):
            own = words[1].strip('"').startswith(links)
        if not own and line:
            lines.append(line)
        own = own and line != "\t}"
    return "\n".join(lines)


def remove(table: str) -> str:
    """Return commands that remove the table. No error if there is none."""
    return f"add table inet {table}\ndelete table inet {table}\n"


def admit(table: str, link: str, box: IPv4Address, egress: Egress) -> str:
    """Return commands that add the entries of one box.

    Addresses that an earlier list opened by name stay open until they expire.
    """
    text = f'add element inet {table} known {{ "{link}" . {box} }}\n'
    opened = f'add element inet {table} open {{ "{link}" }}\n'
    if egress.word == ALL:
        return text + opened
    text += opened + f'delete element inet {table} open {{ "{link}" }}\n'
    return text + _own_chain(table, link, egress) if egress.is_list else text


def allow(
    table: str, link: str, addresses: list[IPv4Address], port: int | None, seconds: int
) -> str:
    """Return commands that open addresses to a box with a list for `seconds` from now.

    The new expiry of an address replaces the earlier one, even if that was later.
    """
    kind, after = ("names", "") if port is None else ("ports", f" . {port}")
    name = f"element inet {table} {link}-{kind}"
    return "".join(
        f"add {name} {{ {address}{after} }}\n"
        f"delete {name} {{ {address}{after} }}\n"
        f"add {name} {{ {address}{after} timeout {seconds}s }}\n"
        for address in addresses
    )


def expel(table: str, link: str, box: IPv4Address) -> str:
    """Return commands that remove the entries of one box. No error if there are none."""
    known_element = f'element inet {table} known {{ "{link}" . {box} }}\n'
    entries = [f'element inet {table} {name} {{ "{link}" }}\n' for name in ("open", "listed")]
    text = f"add {known_element}delete {known_element}"
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
"""Sets of a box with a list, which the resolver fills: addresses, and addresses with one port."""
_WITH_PORTS = "meta l4proto { tcp, udp }"


def _chains(fence: Fence) -> dict[str, list[str]]:
    """Return the rules by chain. Chains without a hook come first, because the others call them."""
    box = f'iifname "{fence.links}*"'
    to_box = f'oifname "{fence.links}*"'
    inner = ", ".join(map(str, DNS_ADDRESSES))
    to_resolver = f"ct status dnat ct original ip daddr {{ {inner} }}"
    mark = f"meta mark set meta mark or {MARK:#x}"
    reply = f"ct direction reply ct original ip saddr {fence.subnet} {mark}"
    return {
        **_helper_chains(fence, to_resolver),
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
            f"{box} {to_resolver} goto admitted",
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
            # The host's own resolver replies to an address of the host. The reply has the mark only
            # after the kernel has translated it back into a reply to the box.
            f"{box} {to_resolver} ip daddr != {fence.own_resolver} snat ip to 127.0.0.1",
        ],
    }


def _helper_chains(fence: Fence, to_resolver: str) -> dict[str, list[str]]:
    """Return the rules of chains without a hook."""
    return {
        "admitted": [
            _beyond("beginnings", f"limit rate over {NEW_PER_S}/second", NEW_PER_S),
            f"add @connections {{ iifname ct count over {fence.connections} }} drop",
            "accept",
        ],
        "allowed": [
            "ct state established,related accept",
            f"{to_resolver} goto admitted",
            *_refuse("ip daddr @denied"),
        ],
        "anywhere": ["jump allowed", "goto admitted"],
    }


def _own_chain(table: str, link: str, egress: Egress) -> str:
    """Return commands for the chain and sets of a box with a list. They keep the sets' elements."""
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
    """Return rules that reject packets, so that programs fail at once, and drop the excess."""
    within = f"update @refusals {{ iifname limit rate {REJECTS_PER_S}/second }}"
    reject = f"{within} reject with icmpx type admin-prohibited"
    return [f"{match} {reject}".lstrip(), f"{match} drop".lstrip()]


def _beyond(counter: str, limit: str, burst: int) -> str:
    """Return a rule that drops packets of one box beyond a limit."""
    return f"update @{counter} {{ iifname {limit} burst {2 * burst} packets }} drop"
