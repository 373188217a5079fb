"""Creates sockets in a box's network namespace, for a process outside it."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from boxd.backends.network.rtnetlink import LinkFailed, enter, leave
from boxd.cancellation import ended

if TYPE_CHECKING:
    from boxd.backends.host.names import HostNames

_THREAD = ThreadPoolExecutor(1, "box networks")
"""Thread for this module only: it enters a namespace for each socket and leaves it again."""


async def tcp_socket(names: HostNames, box_id: str, family: int) -> socket.socket | None:
    """Return a TCP socket in the box's network namespace, or None if it cannot be created.

    A socket stays in the namespace in which it was created, so only its creation needs a thread.
    The thread is permanent, because each request for a port needs a socket. It does not keep a
    box's network alive.
    """
    sockets: list[socket.socket] = []

    def make() -> None:
        enter(names.netns(box_id))
        try:
            kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            sockets.append(socket.socket(family, kind, socket.IPPROTO_TCP))
        finally:
            leave()

    try:
        await ended(asyncio.get_running_loop().run_in_executor(_THREAD, make))
    except (LinkFailed, OSError, asyncio.CancelledError) as error:
        for sock in sockets:
            sock.close()
        if isinstance(error, asyncio.CancelledError):
            raise
        return None
    return sockets[0]
