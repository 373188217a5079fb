"""The link of one box: a network namespace with `eth0` in it, and the host's end of the pair.

This module creates the namespace, or uses that of a process (`pid`: a box that another program has
started). In the second case the namespace gets a name on the host, which keeps it alive. The names
come from `HostNames`. This module does not depend on fence or subnet. The backend serialises the
calls for each box.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host.files import SYSCTL, device, read
from boxd.backends.network import subnets
from boxd.backends.network.rtnetlink import (
    LOOPBACK,
    apart,
    enter,
    kernel,
    make_namespace,
    name_namespace,
    open_own,
    remove_namespace,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Address

    from boxd.backends.host.names import HostNames

_UP = 1
"""IFF_UP, in the flags of a link."""
INNER = "eth0"
"""Name of the box's end of the pair."""
DEFAULT_MTU = 1500


def is_there(names: HostNames, box_id: str, slot: int, pid: int | None = None) -> bool:
    """Return whether the box has its link and its namespace (with `pid`, that of the process)."""
    place = names.netns_path(box_id)
    if not (place.exists() and device(names.link(slot)).exists()):
        return False
    return pid is None or place.samefile(f"/proc/{pid}/ns/net")


async def add(
    names: HostNames,
    box_id: str,
    slot: int,
    address: subnets.BoxAddress,
    *,
    mtu: int,
    localnet: bool,
    pid: int | None = None,
) -> None:
    """Create the namespace, or name that of process `pid`, and set up both ends of the link.

    Nothing may exist before. With `localnet`, the box may also send to the host's loopback
    addresses. If the function raises LinkFailed, parts may remain.
    """
    link, netns = names.link(slot), names.netns(box_id)

    def work() -> None:
        with kernel() as host, _namespace(netns, pid) as namespace, kernel() as inside:
            host.add_pair(link, INNER, namespace, mtu=mtu)
            host.no_own_address(link)
            host.add_address(link, IPv4Interface((address.gateway, subnets.PREFIX)))
            host.switch(link, up=True)
            inside.switch(LOOPBACK, up=True)
            inside.no_own_address(INNER)
            inside.add_address(INNER, IPv4Interface((address.box, subnets.PREFIX)))
            inside.switch(INNER, up=True)
            inside.set_neighbour(INNER, address.gateway, _hardware(link))
            inside.add_default_route(address.gateway)

    await apart(work)
    set_sysctls(link, localnet=localnet)


@contextmanager
def _namespace(netns: str, pid: int | None) -> Iterator[int]:
    """Enter the box's namespace with this thread permanently, and yield a descriptor of it."""
    if pid is None:
        make_namespace(netns)
    else:
        name_namespace(netns, Path(f"/proc/{pid}/ns/net"))
        enter(netns)
    namespace = open_own()
    try:
        yield namespace
    finally:
        os.close(namespace)


def set_sysctls(link: str, *, localnet: bool) -> None:
    """Set how the host treats packets of a link.

    With `localnet`, packets to the host's loopback addresses are allowed. The kernel checks the
    reverse path of each packet by its mark (`lockdown`).
    """
    for name, value in {
        "forwarding": "1",
        "rp_filter": "1",
        "src_valid_mark": "1",
        "arp_ignore": "1",
        "accept_redirects": "0",
        "send_redirects": "0",
        "route_localnet": "1" if localnet else "0",
    }.items():
        (SYSCTL / "ipv4/conf" / link / name).write_text(value)
    six = SYSCTL / "ipv6/conf" / link / "disable_ipv6"
    if six.exists():
        six.write_text("1")


async def introduce(names: HostNames, box_id: str, slot: int, gateway: IPv4Address) -> None:
    """Add the host's end of the link to the box's ARP table.

    An ARP request from the box would have no mark, so the host would not answer it (`lockdown`).
    """
    hardware = _hardware(names.link(slot))

    def work() -> None:
        enter(names.netns(box_id))
        with kernel() as inside:
            inside.set_neighbour(INNER, gateway, hardware)

    await apart(work)


def _hardware(link: str) -> bytes:
    return bytes.fromhex(read(device(link) / "address").strip().replace(":", ""))


def switch(names: HostNames, slot: int, *, up: bool) -> None:
    """Set the host's end of a link up or down. The settings of the box's end stay."""
    link = names.link(slot)
    if not device(link).exists() or bool(int(read(device(link) / "flags"), 16) & _UP) is up:
        return
    with kernel() as host:
        host.switch(link, up=up)


async def take_down(names: HostNames, box_id: str, slot: int) -> None:
    """Remove link and namespace. No error if they do not exist.

    The link is removed first, because the kernel completes the removal of a namespace later.
    """
    link, netns = names.link(slot), names.netns(box_id)

    def work() -> None:
        if device(link).exists():
            with kernel() as host:
                host.remove_link(link)
        remove_namespace(netns)

    if device(link).exists() or names.netns_path(box_id).exists():
        await apart(work)


def traffic(link: str) -> tuple[int, int]:
    """Return the bytes that the box has received and sent on its link; zeros if it has no link."""
    statistics = device(link) / "statistics"
    return int(read(statistics / "tx_bytes") or 0), int(read(statistics / "rx_bytes") or 0)


def uplink_mtu(devices: Iterable[str]) -> int:
    """Return the largest MTU that fits through every uplink."""
    return min((int(read(device(d) / "mtu") or DEFAULT_MTU) for d in devices), default=DEFAULT_MTU)
