"""The link of one box: a network namespace with `eth0` in it, and the host's end of the pair.

The namespace is made here, or it is the one of a process (`pid`: a box that another program has
started), which then gets a name on the host and is kept by it. The names come from `HostNames`.
Nothing here knows of fence or subnet; each step is for one box, whose calls the backend serialises.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends import subnets
from boxd.backends.hostfiles import SYSCTL, device, read
from boxd.backends.rtnetlink import (
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

    from boxd.backends.hostnames import HostNames

_UP = 1
"""IFF_UP, in the flags of a device."""
INNER = "eth0"
"""The box's end."""
DEFAULT_MTU = 1500


def is_there(names: HostNames, box_id: str, slot: int, pid: int | None = None) -> bool:
    """Whether the box has its namespace (that of process `pid`) and its link."""
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
    """Makes the namespace, or names that of process `pid`, and both ends, and sets them up.

    Nothing may be there. `localnet`: the box may send to the host's loopback addresses as well.
    What fails, with LinkFailed, may leave part of it.
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
    """This thread is in the box's namespace, of which this is a descriptor, until it ends."""
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
    """How the host treats packets of a link; `localnet`: to its loopback addresses as well.

    The way back of each packet is looked for, by its mark: see `seal`.
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
    """Tells the box's end the host's: a question for it has no mark, so the host does not answer
    (see `seal`)."""
    hardware = _hardware(names.link(slot))

    def work() -> None:
        enter(names.netns(box_id))
        with kernel() as inside:
            inside.set_neighbour(INNER, gateway, hardware)

    await apart(work)


def _hardware(link: str) -> bytes:
    return bytes.fromhex(read(device(link) / "address").strip().replace(":", ""))


def switch(names: HostNames, slot: int, *, up: bool) -> None:
    """Lets packets pass, or none. What the box's end is set up with stays."""
    link = names.link(slot)
    if not device(link).exists() or bool(int(read(device(link) / "flags"), 16) & _UP) is up:
        return
    with kernel() as host:
        host.switch(link, up=up)


async def take_down(names: HostNames, box_id: str, slot: int) -> None:
    """Removes link and namespace. No error if they are not there.

    The link goes first: a namespace's own removal is finished by the kernel later.
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
    """Bytes that the box has received and sent by its link; zeros when it has none."""
    statistics = device(link) / "statistics"
    return int(read(statistics / "tx_bytes") or 0), int(read(statistics / "rx_bytes") or 0)


def uplink_mtu(devices: Iterable[str]) -> int:
    """What fits through every uplink."""
    return min((int(read(device(d) / "mtu") or DEFAULT_MTU) for d in devices), default=DEFAULT_MTU)
