"""What a box's network namespace needs that is made anew under a box with memory."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from ipaddress import IPv4Interface
from itertools import pairwise
from pathlib import Path

from boxd.backends.bundle import SYSCTLS
from boxd.backends.rtnetlink import LOOPBACK, apart, enter, kernel
from boxd.backends.run import run


async def set_up(netns: str, old: str, own: str) -> None:
    """Before memory is restored into a namespace.

    Sets what runc sets when a box starts, and not when one is restored. And lets sockets be
    restored that are bound to another address than the box now has: the old one is the box's own,
    on its loopback, while processes are brought back.
    """

    def work() -> None:
        enter(netns)
        for name, value in SYSCTLS.items():
            # The kernel shows here what is of this thread's namespace.
            Path("/proc/sys", *name.split(".")).write_text(value)
        if old != own:
            with kernel() as inside:
                inside.add_address(LOOPBACK, IPv4Interface(f"{old}/32"))

    await apart(work)


async def take_back(netns: str, old: str, own: str) -> None:
    """Takes the old address away; also when it was done already.

    What was connected from that address is reset; sockets that listen, or are connected within
    the box by its loopback, live on.
    """
    if old == own:
        return
    if await apart(partial(_in_use, netns)):
        await run("ip", "netns", "exec", netns, "ss", "--kill", "--no-header", "src", old)
    await apart(partial(_take, netns, old))


def _in_use(netns: str) -> bool:
    """Whether there is any socket in the namespace that can have an address.

    By counters: looking for the address takes as long as `ss` does, 60 ms.
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
