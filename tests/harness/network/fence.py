"""Probes of the fence from a box, and hosts around it."""

from __future__ import annotations

import json
import subprocess
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boxd.backends.network.fence import DNS_ADDRESSES
from tests.harness.network import egress_probe
from tests.harness.network import neighbour as beside
from tests.harness.network.answers import Answers
from tests.harness.network.neighbour import HOST_SIDE, PRIVATE, PUBLIC, Neighbour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.boxes.backend import BoxHost

PROBE = Path(egress_probe.__file__)
PORT = 9213
ANYWHERE = str(IPv4Address(0))
LOOPBACK_RESOLVER = "127.0.0.213"


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    """Yield a machine beside the host; see tests.harness.network.neighbour."""
    with beside.neighbour(PORT, 53) as one:
        yield one


@pytest.fixture
def host_listener() -> Iterator[Answers]:
    """Answer on every address of this host, including loopback and the boxes' gateways."""
    answers = Answers()
    try:
        answers.listen(ANYWHERE, PORT)
        answers.listen(LOOPBACK_RESOLVER, 53)
        yield answers
    finally:
        answers.close()


async def probe(host: BoxHost, box: str, targets: list[tuple[str, str, int]]) -> list[str]:
    """Return the result of each target."""
    text = json.dumps(targets).encode()
    result = await host.run(box, "/usr/bin/python3", "-I", "-c", PROBE.read_text(), stdin=text)
    assert result.status == 0, result.err
    outcome: list[str] = json.loads(result.out)
    return outcome


def both(addresses: list[str], *ports: int) -> list[tuple[str, str, int]]:
    """Return TCP and UDP targets."""
    return [(kind, a, port) for kind in ("tcp", "udp") for a in addresses for port in ports]


def host_addresses() -> list[str]:
    """Return every IPv4 address of this host."""
    text = subprocess.run(["ip", "-j", "-4", "addr"], check=True, capture_output=True).stdout
    return [one["local"] for link in json.loads(text) for one in link["addr_info"]]


async def check_nothing_answers_but_what_the_fence_allows(
    box_host: BoxHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    """Only the targets that the fence allows answer."""
    box, other = await box_host.box(), await box_host.box()
    listening = await box_host.run(
        other, "sh", "-c", f"python3 -m http.server {PORT} </dev/null >/dev/null 2>&1 &"
    )
    assert listening.status == 0
    gateway = box_host.address(box).rsplit(".", 1)
    denied = [
        *host_addresses(),
        HOST_SIDE,
        *PRIVATE,
        box_host.address(other),
        f"{gateway[0]}.{int(gateway[1]) - 1}",
        ANYWHERE,
        "169.254.169.254",
        "10.255.255.254",
        "224.0.0.1",
        "255.255.255.255",
        *map(str, DNS_ADDRESSES),
    ]
    denied = [a for a in denied if a != "127.0.0.1"]
    targets = both(denied, PORT) + both([*PRIVATE, HOST_SIDE], 53)
    targets += [
        ("udp", "::1", PORT),
        ("tcp", "fe80::1", PORT),
        ("tcp", "::ffff:10.213.213.2", PORT),
    ]
    targets += [("tcp", "::ffff:192.168.213.1", PORT), ("tcp", "64:ff9b::c0a8:d501", PORT)]
    outcome = await probe(box_host, box, targets)
    assert {t: o for t, o in zip(targets, outcome, strict=True) if o == "answered"} == {}
    assert host_listener.heard == []
    assert neighbour.answers.heard == []
    assert {a: n for a, n in neighbour.packets().items() if n} == {}
    # Without this control the checks above would prove nothing.
    assert await probe(box_host, box, both([PUBLIC], PORT)) == ["answered", "answered"]
    assert neighbour.packets()[PUBLIC] > 0
    assert {peer for _, peer in neighbour.answers.heard} == {HOST_SIDE}


async def check_egress_none_reaches_nothing(
    box_host: BoxHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    """A box without egress reaches no target."""
    box = await box_host.box(egress="none")
    targets = [*both([PUBLIC, *PRIVATE, HOST_SIDE], PORT), ("dns", str(DNS_ADDRESSES[0]), 53)]
    assert "answered" not in await probe(box_host, box, targets)
    assert neighbour.answers.heard == []
    assert host_listener.heard == []
    assert set(neighbour.packets().values()) == {0}
