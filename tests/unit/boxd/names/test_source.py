"""What of an address counts as one source, and which addresses are none."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from boxd.names.source import is_exempt, source_of

OFFICE = (ip_network("198.51.100.0/24"), ip_network("2001:db8::/32"))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("not an address", "not an address"),
    ],
)
def test_sources(text: str, source: str) -> None:
    assert source_of(text) == source


@pytest.mark.parametrize(
    ("text", "exempt"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("198.51.100.7", True),
        ("::ffff:198.51.100.7", True),
        ("2001:db8:1::1", True),
        ("203.0.113.9", False),
        ("2001:db9::1", False),
        ("", False),
    ],
)
def test_loopback_and_trusted_networks_know_no_bound(text: str, exempt: bool) -> None:
    assert is_exempt(text, OFFICE) is exempt
