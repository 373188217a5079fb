"""Prepares a new network namespace for a box whose memory is restored into it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from ipaddress import IPv4Interface
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host.run import run
from boxd.backends.network.rtnetlink import LOOPBACK, apart, enter, kernel
from boxd.backends.oci.bundle import sysctls

if TYPE_CHECKING:
    from boxd.backends.host.id_ranges import IdRange


async def set_up(netns: str, ids: IdRange | None, old: str = "", own: str = "") -> None:
    """Set up a namespace before a box starts in it, or before memory is restored into it.

    Sets the sysctls for a box with these ids. If the box had the address `old` at the dump and now
    has `own`, some sockets may be bound to `old`. So the loopback of the box gets the old address
    until the restore is complete.
    """

    def work() -> None:
        enter(netns)
        for name, value in sysctls(ids).items():
            # The kernel shows the values of this thread's namespace here.
            Path("/proc/sys", *name.split(".")).write_text(value)
        if old != own:
            with kernel() as inside:
                inside.add_address(LOOPBACK, IPv4Interface(f"{old}/32"))

    await apart(work)


async def take_back(netns: str, old: str, own: str) -> None:
    """Remove the old address; no error if it is already gone.

    The removal resets connections from that address. Listening sockets, and connections inside the
    box over its loopback, survive.
    """
    if old == own:
        return
    if await apart(partial(_in_use, netns)):
        await run("ip", "netns", "exec", netns, "ss", "--kill", "--no-header", "src", old)
    await apart(partial(_take, netns, old))


def _in_use(netns: str) -> bool:
    """Return whether the namespace contains any socket that can have an address.

    The function reads counters. A search for the address takes as long as `ss`, 60 ms.
    """
    enter(netns)
    words: list[str] = []
    for name in ("sockstat", "sockstat6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            words += (Path("/proc/thread-self/net") / name).read_text().split()
    return any(word == "inuse" and count != "0" for word, count in pairwise(words))


def _take(netns: str, address: str) -> None:
    enter(netns)
    with kernel() as inside:
        inside.remove_address(LOOPBACK, IPv4Interface(f"{address}/32"))
