"""The rules of the fence as text. `tests/isolation/fence/test_egress.py` tests their effect."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from boxd.backends.network import fence
from boxd.backends.network.egress import DENIED, parse_egress

FENCE = fence.Fence(
    table="boxd_abc123",
    links="bxabc123-",
    family="bx",
    subnet=IPv4Network("10.7.0.0/16"),
    resolvers=(IPv4Address("10.255.255.53"),),
    guarded=(),
    own_resolver=IPv4Address("10.7.255.254"),
    connections=2621,
)
BOX = IPv4Address("10.7.0.2")


def rules(text: str, chain: str) -> list[str]:
    """The rules of one chain, in their order."""
    start = f"add rule inet boxd_abc123 {chain} "
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def test_loading_again_replaces_rules_and_keeps_boxes() -> None:
    lines = fence.ruleset(FENCE).splitlines()
    chains = {line.split()[4] for line in lines if line.startswith("add chain")}
    flushed = {line.split()[4] for line in lines if line.startswith("flush chain")}
    assert chains == flushed
    assert not [line for line in lines if "flush set inet boxd_abc123 known" in line]
    assert not [line for line in lines if "flush set inet boxd_abc123 open" in line]


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "127.0.0.1",
        "0.1.2.3",
        "224.0.0.251",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.0.53",
        "198.18.0.1",
    ],
)
def test_denied(address: str) -> None:
    assert any(IPv4Address(address) in network for network in DENIED)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "9.9.9.9", "172.32.0.1", "100.128.0.1", "223.1.1.1"]
)
def test_not_denied(address: str) -> None:
    assert not any(IPv4Address(address) in network for network in DENIED)


def test_every_path_out_of_a_box_ends_in_a_decision() -> None:
    text = fence.ruleset(FENCE)
    assert rules(text, "local")[-1] == 'iifname "bxabc123-*" drop'
    through = rules(text, "through")
    assert through[-1] == 'iifname "bxabc123-*" drop'
    ways = [rule for rule in through if "goto" in rule or "vmap" in rule]
    assert ways == [
        'iifname "bxabc123-*" iifname @open goto anywhere',
        'iifname "bxabc123-*" iifname vmap @lists',
    ]
    assert 'oifname "bxabc123-*" drop' in through
    assert rules(text, "speak")[-1] == 'oifname "bxabc123-*" drop'
    enter = rules(text, "enter")
    assert enter[0] == 'iifname "bxabc123-*" meta nfproto != ipv4 drop'
    assert enter[1] == 'iifname "bxabc123-*" iifname . ip saddr != @known drop'


def test_what_is_denied_is_refused_before_any_policy_is_asked() -> None:
    text = fence.ruleset(FENCE)
    assert rules(text, "allowed")[-1] == "ip daddr @denied drop"
    assert rules(text, "anywhere") == ["jump allowed", "goto admitted"]
    own = rules(fence.admit("boxd_abc123", "bx-1", BOX, parse_egress("0.0.0.0/0")), "bx-1")
    assert own[0] == "jump allowed"
    assert own[-1] == "drop"
    assert "ip daddr { 0.0.0.0/0 } goto admitted" in own


def test_what_one_box_uses_of_the_host_is_bounded() -> None:
    text = fence.ruleset(FENCE)
    assert rules(text, "admitted") == [
        "update @beginnings { iifname limit rate over 200/second burst 400 packets } drop",
        "add @connections { iifname ct count over 2621 } drop",
        "accept",
    ]
    for chain in ("anywhere", "local", "through"):
        assert not [
            r for r in rules(text, chain) if r.endswith("accept") and "established" not in r
        ]


@pytest.mark.parametrize(("most", "each"), [(0, 256), (65536, 655), (262144, 2621), (10**7, 4096)])
def test_connections_of_one_box(most: int, each: int) -> None:
    assert fence.connections(most) == each


def test_every_dns_address_leads_to_a_resolver() -> None:
    two = (IPv4Address("9.9.9.9"), IPv4Address("127.0.0.1"))
    text = fence.ruleset(replace(FENCE, resolvers=two))
    assert (
        "resolvers { 192.0.0.53 : 9.9.9.9, 192.0.0.54 : 127.0.0.1, 192.0.0.55 : 9.9.9.9 }" in text
    )


def test_without_resolvers_there_is_no_dns() -> None:
    text = fence.ruleset(replace(FENCE, resolvers=()))
    assert "add element inet boxd_abc123 resolvers" not in text


def test_uplinks_that_forward_for_us_forward_to_boxes_alone() -> None:
    assert "eth0" not in fence.ruleset(FENCE)
    text = fence.ruleset(replace(FENCE, guarded=("eth0", "wg0")))
    assert rules(text, "through")[:2] == [
        'iifname "eth0" oifname != "bx*" drop',
        'iifname "wg0" oifname != "bx*" drop',
    ]


def test_entries_of_a_box() -> None:
    known = 'element inet t known { "bx-1" . 10.7.0.2 }\n'
    opened = 'element inet t open { "bx-1" }\n'
    assert fence.admit("t", "bx-1", BOX, parse_egress("all")) == f"add {known}add {opened}"
    closed = fence.admit("t", "bx-1", BOX, parse_egress("none"))
    assert closed == f"add {known}add {opened}delete {opened}"
    gone = fence.expel("t", "bx-1", BOX)
    assert gone.startswith(f"add {known}delete {known}add {opened}delete {opened}")
    for removed in ("chain inet t bx-1\n", "set inet t bx-1-names\n", "set inet t bx-1-ports\n"):
        assert f"delete {removed}" in gone


def test_the_chain_of_a_list() -> None:
    text = fence.admit(
        "boxd_abc123", "bx-1", BOX, parse_egress("a.test,198.51.100.0/24,9.9.9.9,203.0.113.7:80")
    )
    with_ports = "meta l4proto { tcp, udp }"
    assert rules(text, "bx-1")[1:-2] == [
        "ip daddr @bx-1-names goto admitted",
        f"{with_ports} ip daddr . th dport @bx-1-ports goto admitted",
        "ip daddr { 9.9.9.9/32, 198.51.100.0/24 } goto admitted",
        f"ip daddr {{ 203.0.113.7/32 }} {with_ports} th dport 80 goto admitted",
    ]
    assert 'delete element inet boxd_abc123 open { "bx-1" }' in text
    assert 'add element inet boxd_abc123 lists { "bx-1" : goto bx-1 }' in text
    assert 'add element inet boxd_abc123 listed { "bx-1" }' in text


def test_addresses_of_names_get_their_time_anew() -> None:
    two = [IPv4Address("9.9.9.9"), IPv4Address("1.1.1.1")]
    assert fence.allow("t", "bx-1", two[:1], None, 90) == (
        "add element inet t bx-1-names { 9.9.9.9 }\n"
        "delete element inet t bx-1-names { 9.9.9.9 }\n"
        "add element inet t bx-1-names { 9.9.9.9 timeout 90s }\n"
    )
    text = fence.allow("t", "bx-1", two, 443, 60)
    assert "add element inet t bx-1-ports { 1.1.1.1 . 443 timeout 60s }\n" in text


def test_removal_needs_no_table() -> None:
    assert fence.remove("t") == "add table inet t\ndelete table inet t\n"


LISTING = """table inet boxd_abc123 {
\tset known {
\t\ttypeof iifname . ip saddr
\t}
%s
\tchain through {
\t\tdrop
\t}
%s}
"""
OWN = """
\tset bxabc123-0001-names {
\t\ttype ipv4_addr
\t}

\tchain bxabc123-0001 {
\t\tjump allowed
\t}
"""


def test_the_outline_is_the_same_whatever_boxes_there_are() -> None:
    plain = fence.outline(LISTING % ("", ""), "bxabc123-")
    assert plain.splitlines()[-3:] == ["\t\tdrop", "\t}", "}"]
    for parts in ((OWN, ""), ("", OWN), (OWN, OWN)):
        assert fence.outline(LISTING % parts, "bxabc123-") == plain
    assert fence.outline((LISTING % (OWN, "")).replace("\t\tdrop\n", ""), "bxabc123-") != plain
