"""Sockets that see a box's network, for a process that does not."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from boxd.backends.boxlocks import ended
from boxd.backends.rtnetlink import LinkFailed, enter, leave

if TYPE_CHECKING:
    from boxd.backends.hostnames import HostNames

_THREAD = ThreadPoolExecutor(1, "box networks")
"""Where nothing else is done: each piece of work says itself which network it is about."""


async def tcp_socket(names: HostNames, box_id: str, family: int) -> socket.socket | None:
    """A TCP socket of the box's namespace, as if made inside; None when none can be made there.

    A socket stays where it was made, so that only this takes a thread: one that is always there, as
    each request for a port needs a socket. It keeps no box's network alive.
    """
    made: list[socket.socket] = []

    def make() -> None:
        enter(names.netns(box_id))
        try:
            kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            made.append(socket.socket(family, kind, socket.IPPROTO_TCP))
        finally:
            leave()

    try:
        await ended(asyncio.get_running_loop().run_in_executor(_THREAD, make))
    except (LinkFailed, OSError, asyncio.CancelledError) as error:
        for one in made:
            one.close()
        if isinstance(error, asyncio.CancelledError):
            raise
        return None
    return made[0]
