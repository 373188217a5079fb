"""Discards netlink messages that a frozen box gets when the service takes its link down.

CRIU refuses a socket with unread messages. So a program that listens for network changes (a
browser, a network manager) would keep its box awake forever. The service discards these messages.
Messages that were unread before the link went down stay, and CRIU refuses them.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from boxd.backends.host.descriptors import GONE, borrowed_socket, targets

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 1000
"""Maximum number of messages discarded per socket."""
_UNREAD, _INODE = 4, 9
"""Columns of /proc/net/netlink."""


def parse(table: str) -> frozenset[int]:
    """Return inodes of sockets with unread messages, from the text of /proc/net/netlink."""
    rows = (line.split() for line in table.splitlines()[1:])
    return frozenset(int(row[_INODE]) for row in rows if row[_UNREAD] != "0")


def unread(pids: Iterable[int]) -> frozenset[int]:
    """Return inodes of the box's netlink sockets with unread messages."""
    for pid in pids:
        with suppress(*GONE):
            return parse(Path(f"/proc/{pid}/net/netlink").read_text())
    return frozenset()


def take_away(pids: Iterable[int], before: frozenset[int]) -> None:
    """Empty the sockets that have unread messages and are not in `before`."""
    pids = list(pids)
    names = {f"socket:[{inode}]" for inode in unread(pids) - before}
    if not names:
        return
    for pid in pids:
        for descriptor, target in targets(pid):
            if target in names:
                names.remove(target)
                with suppress(OSError):
                    _empty(pid, descriptor)


def _empty(pid: int, descriptor: int) -> None:
    with borrowed_socket(pid, descriptor) as sock:
        for _ in range(_MOST):
            sock.recv(1, socket.MSG_DONTWAIT)
