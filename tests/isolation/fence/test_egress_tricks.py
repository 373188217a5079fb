"""Ways around the fence: IPv6, fragments, IP options, DHCP, names that are rebound, odd spellings.

Where a box's own rights would already refuse a trick, it is tried from the box's network namespace
with all rights, so that it is the fence that is tried.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.files import SYSCTL
from boxd.backends.host.run import run
from boxd.backends.runc.backend import RuncBackend
from tests.harness.boxes.backend import STAND_IN
from tests.harness.network.answers import Answers
from tests.harness.network.egress_lists import OTHER_PORT, ZONE, ListHost, lists
from tests.harness.network.fence import PORT, both, host_listener, neighbour, probe
from tests.harness.network.neighbour import HOST_SIDE, PRIVATE, PUBLIC, in_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.boxes.backend import BoxHost
    from tests.harness.network.neighbour import Neighbour

__all__ = ["host_listener", "lists", "neighbour"]

SIX_HOST, SIX_BOX = "fd00:213::1", "fd00:213::2"
NAT64 = "64:ff9b::c0a8:d502"
"""192.168.213.2, as networks without IPv4 write it."""
DHCP_SERVER, DHCP_CLIENT = 67, 68

RAW = """
import socket, struct, sys
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xffff) + (total >> 16)
    return ~(total + (total >> 16)) & 0xffff
def send(target, payload, *, ident=7, offset=0, more=False, options=b"", protocol=17):
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, words * 4 + len(payload), ident,
                       (0x2000 if more else 0) | offset // 8, 64, protocol, 0)
    head += socket.inet_aton(SOURCE) + socket.inet_aton(target) + options
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    raw.sendto(head + payload, (target, 0))
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
udp = lambda port, data: struct.pack("!HHHH", 4000, port, 8 + len(data), 0) + data
"""


async def with_all_rights(host: BoxHost, box: str, program: str) -> None:
    """Runs a program on the host, in the box's network namespace."""
    source = f"SOURCE = {host.address(box)!r}\n"
    netns = ["ip", "netns", "exec", host.names.netns(box)]
    await run(*netns, "/usr/bin/python3", "-I", "-c", RAW + source + program)


def six_in(netns: str, link: str, address: str) -> None:
    """Gives one end of a link an IPv6 address, whatever was switched off."""
    prefix = ["ip", "netns", "exec", netns] if netns else []
    place = SYSCTL / "ipv6/conf" / link / "disable_ipv6"
    subprocess.run([*prefix, "sh", "-c", f"echo 0 > {place}"], check=True)
    words = ["addr", "add", f"{address}/64", "dev", link, "nodad"]
    subprocess.run([*prefix, "ip", "-6", *words], check=True)


@pytest.fixture
def six_listener(neighbour: Neighbour) -> Iterator[Answers]:
    """Answers on an IPv6 address of this host, which a box has on its link as well."""
    answers = Answers()
    try:
        six_in("", neighbour.link, SIX_HOST)
        answers.listen(SIX_HOST, PORT)
        yield answers
    finally:
        answers.close()


async def test_nothing_of_ipv6_leaves_a_box(
    box_host: BoxHost, neighbour: Neighbour, six_listener: Answers
) -> None:
    box = await box_host.box()
    targets = [("tcp", a, PORT) for a in (SIX_HOST, "fd00:ec2::254", "fe80::1", NAT64, "::1")]
    targets += [("udp", a, PORT) for a in (SIX_HOST, "fd00:ec2::254", NAT64, "ff02::1")]
    assert "answered" not in await probe(box_host, box, targets)
    # With an address and a route on both ends of its link it is the fence alone that refuses.
    record = json.loads(box_host.names.paths(box).record.read_text())
    link, netns = box_host.names.link(record["slot"]), box_host.names.netns(box)
    six_in("", link, "fd00:214::1")
    six_in(netns, "eth0", "fd00:214::2")
    await run("ip", "-n", netns, "-6", "route", "add", "default", "via", "fd00:214::1")
    assert "answered" not in await probe(box_host, box, [*targets, ("tcp", "fd00:214::1", PORT)])
    assert six_listener.heard == []
    # The same attempt from beside, where there is no fence, gets through.
    six_in(neighbour.name, "eth0", SIX_BOX)
    knock = f"import socket; socket.create_connection(('{SIX_HOST}', {PORT}), 5).recv(9)"
    await run("ip", "netns", "exec", neighbour.name, "/usr/bin/python3", "-I", "-c", knock)
    assert [peer for _, peer in six_listener.heard] == [SIX_BOX]


async def test_fragments_hide_nothing(lists: ListHost) -> None:
    """A large datagram comes in fragments, of which only the first names its port."""
    host = lists.host
    listed = await host.box(egress=f"{PUBLIC}:{PORT}")
    every = await host.box()
    large = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.settimeout(2)\n"
    large += "s.sendto(bytes(4000), ('{}', {}))\ntry:\n    print(s.recv(50) and 'answered')\n"
    large += "except OSError:\n    print('nothing')\n"

    async def outcome(box: str, address: str, port: int) -> str:
        return (await host.python(box, large.format(address, port))).out.strip()

    assert await outcome(listed, PUBLIC, PORT) == "answered"
    assert await outcome(listed, PUBLIC, OTHER_PORT) == "nothing"
    assert await outcome(every, PRIVATE[0], PORT) == "nothing"
    before = lists.neighbour.packets()
    tiny = f"send('{{0}}', udp({OTHER_PORT}, bytes(8))[:8], more=True)\n"
    tiny += f"send('{{0}}', udp({OTHER_PORT}, bytes(8))[8:], offset=8)\n"
    overlapping = f"send('{{0}}', udp({PORT}, bytes(16))[:16], more=True, ident=9)\n"
    overlapping += f"send('{{0}}', udp({OTHER_PORT}, bytes(16)), ident=9)\n"
    alone = "send('{0}', bytes(64), offset=64, ident=11)\n"
    for trick in (tiny, overlapping, alone):
        await with_all_rights(host, listed, trick.format(PUBLIC))
        await with_all_rights(host, every, trick.format(PRIVATE[0]))
    # The overlapping one is, at its second half, a whole datagram to a port that is not listed.
    after = lists.neighbour.packets()
    assert {a for a in after if after[a] != before[a]} <= {PUBLIC}
    heard = [peer for here, peer in lists.neighbour.answers.heard if here == PUBLIC]
    assert len(heard) == 1, "the honest one alone"


async def test_source_routes_and_tunnels_are_dropped(
    box_host: BoxHost, neighbour: Neighbour
) -> None:
    box = await box_host.box()
    inner = f"udp({PORT}, b'x')"
    for kind in (0x83, 0x89):  # loose and strict source route, through the public address
        route = f"bytes([{kind}, 7, 4]) + socket.inet_aton('{PRIVATE[0]}') + b'\\x00'"
        await with_all_rights(box_host, box, f"send('{PUBLIC}', {inner}, options={route})")
    for protocol in (4, 41, 47):  # IP in IP, IPv6 in IP, GRE
        await with_all_rights(
            box_host, box, f"send('{PRIVATE[0]}', bytes(40), protocol={protocol})"
        )
    assert set(neighbour.packets().values()) == {0}
    await with_all_rights(box_host, box, f"send('{PUBLIC}', {inner})")
    assert neighbour.packets()[PUBLIC] > 0


async def test_a_box_is_no_dhcp_server(box_host: BoxHost, neighbour: Neighbour) -> None:
    """Its answers reach neither the host nor a machine beside it, nor do its questions."""
    answers = Answers()
    try:
        answers.listen("0.0.0.0", DHCP_SERVER, DHCP_CLIENT)  # noqa: S104  every address is meant
        in_namespace(neighbour.name, lambda: answers.listen(PRIVATE[0], DHCP_SERVER, DHCP_CLIENT))
        box = await box_host.box()
        offer = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        offer += "s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)\n"
        offer += f"s.bind(('', {DHCP_SERVER}))\n"
        offer += f"for a in ('255.255.255.255', '{HOST_SIDE}', '{PRIVATE[0]}', '192.168.213.3'):\n"
        offer += f"    for p in ({DHCP_SERVER}, {DHCP_CLIENT}):\n        try:\n"
        offer += "            s.sendto(b'offer', (a, p))\n        except OSError: pass\n"
        assert (await box_host.python(box, offer)).status == 0
        assert "answered" not in await probe(box_host, box, both([HOST_SIDE], DHCP_CLIENT))
        assert answers.heard == []
    finally:
        answers.close()


async def test_a_name_that_leads_to_a_denied_address_is_no_way_in(lists: ListHost) -> None:
    """With egress `all` the host's resolver is asked, which may say anything."""
    box = await lists.host.box()
    assert await lists.reach(box, ("rebound.test", PORT), ("allowed.test", PORT)) == [False, True]
    packets = lists.neighbour.packets()
    assert {a for a, n in packets.items() if n} == {PUBLIC, PRIVATE[0]}
    assert {here for here, _ in lists.neighbour.answers.heard} == {PUBLIC}
    assert ZONE["rebound.test"][1] == PRIVATE[0], "whose packets are questions for names"


async def test_all_of_it_again_after_the_daemon_was_killed(
    box_host: BoxHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    """The next daemon's first sight of the boxes is what the last one left on the host."""
    boxes = [await box_host.box(egress=e) for e in ("all", "none", f"{PUBLIC}:{PORT}")]
    await box_host.backend.close()  # of what is its own a killed process keeps nothing
    heir = RuncBackend(box_host.config, init=STAND_IN)
    await heir.setup()
    try:
        denied = both([HOST_SIDE, *PRIVATE, *(box_host.address(box) for box in boxes)], PORT)
        for box in boxes:
            assert "answered" not in await probe(box_host, box, denied)
        assert host_listener.heard == []
        assert neighbour.answers.heard == []
        [every, none, listed] = boxes
        target = [("tcp", PUBLIC, PORT)]
        assert await probe(box_host, every, target) == ["answered"]
        assert await probe(box_host, listed, target) == ["answered"]
        assert await probe(box_host, none, target) != ["answered"]
    finally:
        await heir.close()


async def test_the_next_box_inherits_no_connection(box_host: BoxHost, neighbour: Neighbour) -> None:
    first = await box_host.box()
    assert await probe(box_host, first, [("udp", PUBLIC, PORT)]) == ["answered"]
    address = box_host.address(first)

    def known() -> int:
        with open("/proc/net/nf_conntrack", encoding="ascii") as table:
            return sum(f"src={address} " in line for line in table)

    assert known() > 0
    await box_host.backend.destroy(first)
    assert known() == 0
