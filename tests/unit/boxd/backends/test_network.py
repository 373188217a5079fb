"""What is read from the host's network configuration."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING

import pytest

from boxd.backends import network
from boxd.backends.hostnames import HostNames
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
wg0\t0000FF0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
bxabc123-0001\t0000070A\t00000000\t0001\t0\t0\t0\tFCFFFFFF\t0\t0\t0
*\t0000070A\t00000000\t0200\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_routes() -> None:
    routes = network.parse_routes(ROUTES)
    assert routes[0] == network.Route("eth0", IPv4Network("0.0.0.0/0"), IPv4Address("192.0.2.1"))
    assert routes[1] == network.Route("eth0", IPv4Network("192.0.2.0/24"), None)
    assert network.parse_routes("header\n") == []


def test_uplinks_are_the_ways_out_and_the_ways_to_resolvers() -> None:
    routes = network.parse_routes(ROUTES)
    assert network.uplinks(routes, []) == ("eth0",)
    assert network.uplinks(routes, [IPv4Address("10.255.255.53")]) == ("eth0", "wg0")
    assert network.uplinks(routes, [IPv4Address("10.7.0.1")]) == ("eth0",)
    assert network.uplinks([], [IPv4Address("9.9.9.9")]) == ()


def test_resolvers_of_a_file() -> None:
    text = "# nameserver 1.1.1.1\nsearch x\nnameserver\nnameserver fe80::1\nnameserver 9.9.9.9\n"
    assert network.parse_resolvers(text) == [IPv4Address("9.9.9.9")]


def test_resolvers_of_the_host(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    assert network.host_resolvers(conf) == ()
    conf.write_text("".join(f"nameserver 10.0.0.{n}\n" for n in (1, 1, 2, 3, 4)))
    assert [str(one) for one in network.host_resolvers(conf)] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
    ]


def test_nothing_has_an_address_before_the_network_is_set_up(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not set up"):
        network.Network(HostNames("abc123", tmp_path)).address(0)


def test_link_names_fit_the_kernels_limit(tmp_path: Path) -> None:
    names = HostNames("abc123", tmp_path)
    assert names.link(16383) == "bxabc123-3fff"
    assert len(names.link(16383)) <= 15
