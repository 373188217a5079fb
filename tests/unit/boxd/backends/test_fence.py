"""The rules of the fence as text; what they do is tested in tests/isolation/test_egress.py."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from boxd.backends import fence

FENCE = fence.Fence(
    table="boxd_abc123",
    links="bxabc123-",
    family="bx",
    subnet=IPv4Network("10.7.0.0/16"),
    resolvers=(IPv4Address("10.255.255.53"),),
    guarded=(),
)


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
    assert any(IPv4Address(address) in network for network in fence.DENIED)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "9.9.9.9", "172.32.0.1", "100.128.0.1", "223.1.1.1"]
)
def test_not_denied(address: str) -> None:
    assert not any(IPv4Address(address) in network for network in fence.DENIED)


def test_every_path_out_of_a_box_ends_in_a_decision() -> None:
    text = fence.ruleset(FENCE)
    assert rules(text, "local")[-1] == 'iifname "bxabc123-*" drop'
    through = rules(text, "through")
    assert through[-1] == 'iifname "bxabc123-*" accept'
    closed = through.index('iifname "bxabc123-*" iifname != @open drop')
    denied = through.index('iifname "bxabc123-*" ip daddr @denied drop')
    assert closed < denied < len(through) - 1
    assert 'oifname "bxabc123-*" drop' in through
    assert rules(text, "speak")[-1] == 'oifname "bxabc123-*" drop'
    enter = rules(text, "enter")
    assert enter[0] == 'iifname "bxabc123-*" meta nfproto != ipv4 drop'
    assert enter[1] == 'iifname "bxabc123-*" iifname . ip saddr != @known drop'


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
    box = IPv4Address("10.7.0.2")
    known = 'element inet t known { "bx-1" . 10.7.0.2 }\n'
    opened = 'element inet t open { "bx-1" }\n'
    assert fence.admit("t", "bx-1", box, open_=True) == f"add {known}add {opened}"
    closed = fence.admit("t", "bx-1", box, open_=False)
    assert closed == f"add {known}add {opened}delete {opened}"
    assert fence.expel("t", "bx-1", box) == (
        f"add {known}delete {known}add {opened}delete {opened}"
    )


def test_removal_needs_no_table() -> None:
    assert fence.remove("t") == "add table inet t\ndelete table inet t\n"
