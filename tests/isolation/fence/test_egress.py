"""What a box reaches, and what it does not: tried from inside, counted outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from boxd.backends.host.run import CommandFailed, run
from boxd.backends.network.fence import DNS_ADDRESSES
from boxd.backends.runc.backend import RuncBackend
from tests.harness.boxes.backend import STAND_IN, open_box_host
from tests.harness.network.fence import (
    LOOPBACK_RESOLVER,
    PORT,
    both,
    check_egress_none_reaches_nothing,
    check_nothing_answers_but_what_the_fence_allows,
    host_listener,
    neighbour,
    probe,
)
from tests.harness.network.neighbour import PRIVATE, PUBLIC, Neighbour

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.boxes.backend import BoxHost
    from tests.harness.network.answers import Answers

__all__ = ["host_listener", "neighbour"]


@pytest.mark.promise("S4")
async def test_nothing_answers_but_what_the_fence_allows(
    box_host: BoxHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await check_nothing_answers_but_what_the_fence_allows(box_host, neighbour, host_listener)


async def test_egress_none_reaches_nothing(
    box_host: BoxHost, neighbour: Neighbour, host_listener: Answers
) -> None:
    await check_egress_none_reaches_nothing(box_host, neighbour, host_listener)


async def test_nothing_reaches_a_box(box_host: BoxHost, neighbour: Neighbour) -> None:
    """Neither the host nor a neighbour that routes to it, though the box listens."""
    box = await box_host.box()
    await box_host.run(
        box, "sh", "-c", f"python3 -m http.server {PORT} </dev/null >/dev/null 2>&1 &"
    )
    address = box_host.address(box)
    knock = ["curl", "--silent", "--max-time", "1", f"http://{address}:{PORT}/"]
    for knocker in (knock, ["ip", "netns", "exec", neighbour.name, *knock]):
        with pytest.raises(CommandFailed):
            await run(*knocker)
    local = await box_host.run(
        box, "sh", "-c", f"curl --retry 20 --retry-delay 0 --retry-connrefused -s localhost:{PORT}"
    )
    assert local.status == 0


@pytest.mark.parametrize("resolver", [LOOPBACK_RESOLVER, PRIVATE[0], PUBLIC])
async def test_dns_reaches_the_hosts_resolver_wherever_it_is(
    tmp_path: Path,
    image_rootfs: Path,
    neighbour: Neighbour,
    host_listener: Answers,
    resolver: str,
) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"search example.com\nnameserver ::1\nnameserver {resolver}\n")
    async with open_box_host(tmp_path / "state", image_rootfs, conf) as host:
        box = await host.box()
        servers = (await host.run(box, "cat", "/etc/resolv.conf")).out
        assert servers.split()[1::2] == [str(address) for address in DNS_ADDRESSES]
        targets = [("dns", str(address), 53) for address in DNS_ADDRESSES]
        targets += [("tcp", str(DNS_ADDRESSES[0]), 53)]
        assert await probe(host, box, targets) == ["answered"] * 4
        heard = host_listener if resolver == LOOPBACK_RESOLVER else neighbour.answers
        assert len(heard.heard) == 4
        directly = both([LOOPBACK_RESOLVER, PRIVATE[0]], 53) + both([str(DNS_ADDRESSES[0])], PORT)
        assert "answered" not in await probe(host, box, directly)
        assert len(heard.heard) == 4


async def test_a_changed_resolver_is_followed(
    tmp_path: Path, image_rootfs: Path, neighbour: Neighbour, host_listener: Answers
) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text(f"nameserver {PRIVATE[0]}\n")
    async with open_box_host(tmp_path / "state", image_rootfs, conf) as host:
        box = await host.box()
        conf.write_text(f"nameserver {PUBLIC}\n")
        await host.box()
        assert await probe(host, box, [("dns", str(DNS_ADDRESSES[0]), 53)]) == ["answered"]
        assert neighbour.packets()[PUBLIC] == 1
        assert neighbour.packets()[PRIVATE[0]] == 0


async def test_spoofed_sources_are_dropped(box_host: BoxHost, neighbour: Neighbour) -> None:
    """From the box's own namespace with all rights, which the box's root does not have."""
    box, other = await box_host.box(), await box_host.box()
    inside = ["ip", "-n", box_host.names.netns(box), "addr", "add"]
    foreign = box_host.address(other)
    await run(*inside, f"{foreign}/32", "dev", "eth0")
    program = "import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
    program += f"s.bind(('{foreign}', 0)); s.sendto(b'x', ('{PUBLIC}', {PORT}))"
    await box_host.python(box, program)
    assert await probe(box_host, box, [("udp", PUBLIC, PORT)]) == ["answered"]
    assert neighbour.packets()[PUBLIC] == 1  # the honest one alone


async def test_the_fence_outlives_the_daemon(box_host: BoxHost, neighbour: Neighbour) -> None:
    box = await box_host.box()
    table = ["nft", "list", "table", "inet", box_host.names.table]
    before = await run(*table)
    heir = RuncBackend(box_host.config, init=STAND_IN)
    await heir.setup()
    assert await run(*table) == before
    await heir.close()
    assert await run(*table) == before
    assert await probe(box_host, box, both([PUBLIC], PORT)) == ["answered", "answered"]
    assert "answered" not in await probe(box_host, box, both([PRIVATE[0]], PORT))


async def test_a_fence_that_was_flushed_is_restored(
    box_host: BoxHost, neighbour: Neighbour
) -> None:
    box = await box_host.box()
    await box_host.backend.close()  # nobody looks after the fence now
    await run("nft", "delete", "table", "inet", box_host.names.table)
    heir = RuncBackend(box_host.config, init=STAND_IN)
    await heir.setup()
    assert await probe(box_host, box, both([PUBLIC], PORT)) == ["answered", "answered"]
    assert "answered" not in await probe(box_host, box, both([PRIVATE[0]], PORT))
