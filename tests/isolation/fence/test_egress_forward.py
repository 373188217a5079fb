"""Denied addresses in every spelling, by `ssh -L`: the box dials, so the fence decides."""

from __future__ import annotations

import subprocess
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

import pytest

from tests.harness.network.fence import ANYWHERE, PORT, host_listener, neighbour
from tests.harness.network.neighbour import HOST_SIDE, PRIVATE, PUBLIC
from tests.harness.service.user import SSH, User, user

if TYPE_CHECKING:
    from tests.harness.network.answers import Answers
    from tests.harness.network.neighbour import Neighbour
    from tests.harness.service.daemon import Daemon

__all__ = ["host_listener", "neighbour", "user"]

METADATA = "169.254.169.254"


def spellings(address: str) -> list[str]:
    """Ways to write an IPv4 address that some programs take."""
    number = int(IPv4Address(address))
    a, b, c, d = IPv4Address(address).packed
    return [
        address,
        str(number),
        hex(number),
        f"0{number:o}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}",
        f"{hex(a)}.{hex(b)}.{hex(c)}.{hex(d)}",
        f"{a}.{b}.{c << 8 | d}",
        f"{a}.{b << 16 | c << 8 | d}",
        f"[::ffff:{address}]",
        f"[64:ff9b::{a << 8 | b:x}:{c << 8 | d:x}]",
    ]


def forwarded(daemon: Daemon, user: User, *targets: str) -> list[bytes]:
    """What came back through each `ssh -W target:PORT`."""
    words = [*SSH, "-i", str(user.key), "-p", str(daemon.ssh_port)]
    running = [
        subprocess.Popen(
            [*words, "-W", f"{target}:{PORT}", "dev@127.0.0.1"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for target in targets
    ]
    return [one.communicate(timeout=60)[0] for one in running]


@pytest.mark.timeout(600)
def test_no_spelling_of_a_denied_address_leads_there(
    daemon: Daemon, user: User, neighbour: Neighbour, host_listener: Answers
) -> None:
    user.ssh("dev", "true")
    for address in (PRIVATE[0], HOST_SIDE, METADATA, "127.0.0.1"):
        assert not any(forwarded(daemon, user, *spellings(address)))
    assert not any(forwarded(daemon, user, "0", ANYWHERE, "[::]", "localhost", "[fe80::1]"))
    assert host_listener.heard == []
    assert neighbour.answers.heard == []
    assert {a: n for a, n in neighbour.packets().items() if n} == {}
    # Were it not for the fence, most of these spellings would do.
    public = forwarded(daemon, user, *spellings(PUBLIC)[:-1])
    assert sum(answer != b"" for answer in public) > len(public) // 2
