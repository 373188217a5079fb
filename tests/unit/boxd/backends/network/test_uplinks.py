"""What is read from the host's network configuration."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from boxd.backends.network import uplinks

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
wg0\t0000FF0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
bxabc123-0001\t0000070A\t00000000\t0001\t0\t0\t0\tFCFFFFFF\t0\t0\t0
*\t0000070A\t00000000\t0200\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_routes() -> None:
    routes = uplinks.parse_routes(ROUTES)
    assert routes[0] == uplinks.Route("eth0", IPv4Network("0.0.0.0/0"), IPv4Address("192.0.2.1"))
    assert routes[1] == uplinks.Route("eth0", IPv4Network("192.0.2.0/24"), None)
    assert uplinks.parse_routes("header\n") == []


def test_uplinks_are_the_ways_out_and_the_ways_to_resolvers() -> None:
    routes = uplinks.parse_routes(ROUTES)
    assert uplinks.uplinks(routes, []) == ("eth0",)
    assert uplinks.uplinks(routes, [IPv4Address("10.255.255.53")]) == ("eth0", "wg0")
    assert uplinks.uplinks(routes, [IPv4Address("10.7.0.1")]) == ("eth0",)
    assert uplinks.uplinks([], [IPv4Address("9.9.9.9")]) == ()


def test_resolvers_of_a_file() -> None:
    text = "# nameserver 1.1.1.1\nsearch x\nnameserver\nnameserver fe80::1\nnameserver 9.9.9.9\n"
    assert uplinks.parse_resolvers(text) == [IPv4Address("9.9.9.9")]
