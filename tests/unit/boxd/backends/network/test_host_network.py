"""The boxes' network before it is set up: resolvers of this host, addresses, names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.names import HostNames
from boxd.backends.network import host_network
from boxd.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path


def test_resolvers_of_the_host(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    assert host_network.host_resolvers(conf) == ()
    conf.write_text("".join(f"nameserver 10.0.0.{n}\n" for n in (1, 1, 2, 3, 4)))
    assert [str(one) for one in host_network.host_resolvers(conf)] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.3",
    ]


def test_nothing_has_an_address_before_the_network_is_set_up(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not set up"):
        host_network.Network(HostNames("abc123", tmp_path)).address(0)


def test_link_names_fit_the_kernels_limit(tmp_path: Path) -> None:
    names = HostNames("abc123", tmp_path)
    assert names.link(16383) == "bxabc123-3fff"
    assert len(names.link(16383)) <= 15
