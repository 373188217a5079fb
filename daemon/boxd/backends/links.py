"""The link of one box: a network namespace with `eth0` in it, and the host's end of the pair.

The namespace is made here, or it is the one of a process (`pid`: a box that another program has
started), which then gets a name on the host and is kept by it. The names come from `HostNames`.
Nothing here knows of fence or subnet; each step is for one box, whose calls the backend serialises.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import TYPE_CHECKING

from boxd.backends import subnets
from boxd.backends.hostfiles import SYSCTL, device, read
from boxd.backends.run import CommandFailed, run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from boxd.backends.hostnames import HostNames

_UP = 1
"""IFF_UP, in the flags of a device."""
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_FLAGS = "16sH22x"
"""`struct ifreq` with the flags of a device."""
TAKE_DOWN_ATTEMPTS = 5
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
    pid: int | None = None,
) -> None:
    """Makes the namespace, or names that of process `pid`, and both ends, and sets up the host's
    one. Nothing may be there."""
    link, netns = names.link(slot), names.netns(box_id)
    namespace = f"netns add {netns}" if pid is None else f"netns attach {netns} {pid}"
    await run(
        "ip",
        "-batch",
        "-",
        stdin=f"{namespace}\n"
        f"link add dev {link} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {netns}\n"
        f"link set dev {link} addrgenmode none\n"
        f"addr add {address.gateway}/{subnets.PREFIX} dev {link}\n"
        f"link set {link} up\n",
    )


def set_sysctls(link: str, *, localnet: bool) -> None:
    """How the host treats packets of a link; `localnet`: to its loopback addresses as well."""
    for name, value in {
        "forwarding": "1",
        "rp_filter": "1",
        "arp_ignore": "1",
        "accept_redirects": "0",
        "send_redirects": "0",
        "route_localnet": "1" if localnet else "0",
    }.items():
        (SYSCTL / "ipv4/conf" / link / name).write_text(value)
    six = SYSCTL / "ipv6/conf" / link / "disable_ipv6"
    if six.exists():
        six.write_text("1")


async def set_up_inside(netns: str, address: subnets.BoxAddress) -> None:
    """Sets up the box's end: its address and the way out."""
    await run(
        "ip",
        "-n",
        netns,
        "-batch",
        "-",
        stdin="link set lo up\n"
        "link set dev eth0 addrgenmode none\n"
        f"addr add {address.box}/{subnets.PREFIX} dev eth0\n"
        "link set eth0 up\n"
        f"route add default via {address.gateway}\n",
    )


def switch(names: HostNames, slot: int, *, up: bool) -> None:
    """Lets packets pass, or none. What the box's end is set up with stays."""
    link = names.link(slot)
    if not device(link).exists():
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack(_FLAGS, link.encode(), 0)
        flags = struct.unpack(_FLAGS, fcntl.ioctl(control, _GET_FLAGS, asked))[1]
        if bool(flags & _UP) is not up:
            fcntl.ioctl(control, _SET_FLAGS, struct.pack(_FLAGS, link.encode(), flags ^ _UP))


async def take_down(names: HostNames, box_id: str, slot: int) -> None:
    """Removes link and namespace. No error if they are not there.

    The link goes first: a namespace's own removal is finished by the kernel later, and may be
    under way for the link of a lost namespace just now, hence the second look.
    """
    link = names.link(slot)
    for attempt in range(TAKE_DOWN_ATTEMPTS):
        batch = f"link del {link}\n" if device(link).exists() else ""
        if names.netns_path(box_id).exists():
            batch += f"netns del {names.netns(box_id)}\n"
        if not batch:
            return
        try:
            await run("ip", "-batch", "-", stdin=batch)
        except CommandFailed as error:
            gone = "Cannot find device" in error.message
            if not gone or attempt + 1 == TAKE_DOWN_ATTEMPTS:
                raise


def traffic(link: str) -> tuple[int, int]:
    """Bytes that the box has received and sent by its link; zeros when it has none."""
    statistics = device(link) / "statistics"
    return int(read(statistics / "tx_bytes") or 0), int(read(statistics / "rx_bytes") or 0)


def uplink_mtu(devices: Iterable[str]) -> int:
    """What fits through every uplink."""
    return min((int(read(device(d) / "mtu") or DEFAULT_MTU) for d in devices), default=DEFAULT_MTU)
